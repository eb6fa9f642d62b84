"""A training batch divided between two threads: the same answers, and the same bits every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.engine.work import policy_datum, sft_datum
from tinkex.engine.interface import LoraSpec, RequestError, TrainRequest
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine
from tinkex.engine.training import step
from tinkex.engine.training.halves import run_halves

LENGTHS = [90, 33, 120, 64, 10, 77, 101, 5, 60]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch):
    """Divides batches or not, whatever the machine; how many were."""
    counts = {"divided": 0}

    def count(*halves):
        counts["divided"] += 1
        return run_halves(*halves)

    monkeypatch.setattr(step, "run_halves", count)

    def use(is_divided: bool) -> dict[str, int]:
        monkeypatch.setattr(step, "can_halve", lambda _: is_divided)
        return counts

    return use


def _engine(tiny: Path, **options: object) -> TorchEngine:
    engine = TorchEngine(
        EngineOptions(models={"tiny": str(tiny)}, microbatch_tokens=256, **options)
    )
    for name in "abc":
        engine.create_adapter(name, "tiny", LoraSpec(rank=4, seed=ord(name)))
    return engine


def _requests(adapters: str, *, backward: bool = True) -> list[TrainRequest]:
    """All sequences for one adapter, or dealt out among several; two losses."""
    found = []
    for n, name in enumerate(adapters):
        data = [sft_datum(length, n) for length in LENGTHS[n :: len(adapters)]]
        found.append(TrainRequest(adapter_id=name, data=data, backward=backward))
    policy = [policy_datum(length) for length in LENGTHS]
    loss = {"adapter_id": adapters[0], "loss_fn": "importance_sampling", "backward": backward}
    return [*found, TrainRequest(data=policy, **loss)]


def _gradients(engine: TorchEngine, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for name in "abc":
        engine.save_adapter(name, folder / name, "all")
        path = folder / name / "gradients.safetensors"
        found[name] = load_file(path) if path.exists() else {}
    return found


@pytest.mark.parametrize("adapters", ["a", "ab", "abc"])
def test_halves_find_what_the_whole_finds(adapters, tiny, tmp_path, divided) -> None:
    saved, results = [], []
    for is_divided in (False, True):
        counts = divided(is_divided)
        engine = _engine(tiny)
        results.append(engine.forward_backward(_requests(adapters)))
        saved.append(_gradients(engine, tmp_path / str(is_divided)))
    assert counts["divided"] >= 2
    for whole, halves in zip(*results, strict=True):
        assert not isinstance(whole, RequestError)
        for one, other in zip(whole.logprobs, halves.logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        assert halves.metrics == pytest.approx(whole.metrics, rel=1e-5)
    for name in adapters:
        assert saved[0][name].keys() == saved[1][name].keys() != set()
        for key, whole in saved[0][name].items():
            atol = 1e-5 * float(whole.abs().max())
            torch.testing.assert_close(saved[1][name][key], whole, atol=atol, rtol=1e-4)


def test_halves_give_the_same_bits_every_time(tiny, tmp_path, divided) -> None:
    counts = divided(True)
    saved = []
    for turn in range(3):
        engine = _engine(tiny)
        engine.forward_backward(_requests("ab"))
        for name in "ab":
            engine.save_adapter(name, tmp_path / str(turn) / name, "all")
        folder = tmp_path / str(turn)
        saved.append([(folder / n / "gradients.safetensors").read_bytes() for n in "ab"])
    assert saved[0] == saved[1] == saved[2]
    assert counts["divided"] >= 3


def test_requests_of_one_adapter_are_exact_however_they_come(tiny, tmp_path, divided) -> None:
    counts = divided(True)
    requests = [
        TrainRequest(adapter_id="a", data=[sft_datum(n, seed) for n in (70, 80, 90, 100)])
        for seed in (1, 2)
    ]
    saved = []
    for sizes in ([2], [1, 1]):
        engine, left = _engine(tiny), list(requests)
        for size in sizes:
            engine.forward_backward(left[:size])
            del left[:size]
        engine.save_adapter("a", tmp_path / str(len(saved)), "all")
        saved.append((tmp_path / str(len(saved)) / "gradients.safetensors").read_bytes())
    assert saved[0] == saved[1]
    assert counts["divided"] >= 3


def test_logprobs_alone_are_divided_too(tiny, divided) -> None:
    results = []
    for is_divided in (False, True):
        counts = divided(is_divided)
        results.append(_engine(tiny).forward_backward(_requests("ab", backward=False)))
    assert counts["divided"] >= 2
    for whole, halves in zip(*results, strict=True):
        for one, other in zip(whole.logprobs, halves.logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_cannot_be_divided_evenly_is_not(tiny, divided) -> None:
    counts = divided(True)
    for lengths in ([200, 70], [40, 40], [129, 129]):  # uneven, small, too long for half a batch
        request = TrainRequest(adapter_id="a", data=[sft_datum(n) for n in lengths])
        (result,) = _engine(tiny).forward_backward([request])
        assert not isinstance(result, RequestError)
    assert counts["divided"] == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_both_halves_have_ended_when_one_fails(failing) -> None:
    ended = []

    def half(number: int) -> int:
        threads = torch.get_num_threads()
        ended.append(number)
        if number == failing:
            raise RuntimeError("no memory")
        return threads

    with pytest.raises(RuntimeError, match="no memory"):
        run_halves(lambda: half(0), lambda: half(1))
    assert sorted(ended) == [0, 1]
    num_threads = torch.get_num_threads()
    assert run_halves(lambda: half(2), lambda: half(3)) == (1, 1)
    assert torch.get_num_threads() == num_threads
