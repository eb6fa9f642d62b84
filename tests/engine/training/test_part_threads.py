"""A training batch divided among threads: the same results, and the same bits every time."""

from __future__ import annotations

from functools import partial
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
from tinkex.engine.training.part_threads import num_part_threads, run_parts

LENGTHS = [90, 33, 120, 64, 10, 77, 101, 5, 60]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch):
    """Sets into how many parts batches are divided, on any machine; how many batches were."""
    counts = {"divided": 0}

    def count(parts):
        counts["divided"] += 1
        return run_parts(parts)

    monkeypatch.setattr(step, "run_parts", count)

    def use(num_parts: int) -> dict[str, int]:
        monkeypatch.setattr(step, "num_part_threads", lambda _: num_parts)
        return counts

    return use


def _engine(tiny: Path, **options: object) -> TorchEngine:
    engine = TorchEngine(
        EngineOptions(models={"tiny": str(tiny)}, **{"microbatch_tokens": 256, **options})
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


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("adapters", ["a", "ab", "abc"])
def test_parts_give_the_results_of_the_whole(adapters, num_parts, tiny, tmp_path, divided) -> None:
    saved, results = [], []
    for count in (1, num_parts):
        counts = divided(count)
        engine = _engine(tiny, microbatch_tokens=120 * num_parts)
        results.append(engine.forward_backward(_requests(adapters)))
        saved.append(_gradients(engine, tmp_path / str(count)))
    assert counts["divided"] >= 1
    for whole, parts in zip(*results, strict=True):
        assert not isinstance(whole, RequestError)
        for one, other in zip(whole.logprobs, parts.logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        assert parts.metrics == pytest.approx(whole.metrics, rel=1e-5)
    for name in adapters:
        assert saved[0][name].keys() == saved[1][name].keys() != set()
        for key, whole in saved[0][name].items():
            atol = 1e-5 * float(whole.abs().max())
            torch.testing.assert_close(saved[1][name][key], whole, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("num_parts", [2, 4])
def test_parts_give_the_same_bits_every_time(num_parts, tiny, tmp_path, divided) -> None:
    counts = divided(num_parts)
    saved = []
    for repeat in range(3):
        engine = _engine(tiny, microbatch_tokens=120 * num_parts)
        engine.forward_backward(_requests("ab"))
        folder = tmp_path / str(repeat)
        for name in "ab":
            engine.save_adapter(name, folder / name, "all")
        saved.append([(folder / n / "gradients.safetensors").read_bytes() for n in "ab"])
    assert saved[0] == saved[1] == saved[2]
    assert counts["divided"] >= 3


def test_requests_of_one_adapter_give_the_same_bits_in_one_call_or_two(
    tiny, tmp_path, divided
) -> None:
    counts = divided(2)
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
    for num_parts in (1, 2):
        counts = divided(num_parts)
        results.append(_engine(tiny).forward_backward(_requests("ab", backward=False)))
    assert counts["divided"] >= 2
    for whole, parts in zip(*results, strict=True):
        for one, other in zip(whole.logprobs, parts.logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_batch_that_cannot_be_divided_evenly_is_not_divided(tiny, divided) -> None:
    counts = divided(2)
    for lengths in ([200, 70], [40, 40], [129, 129]):  # uneven, small, too long for half a batch
        request = TrainRequest(adapter_id="a", data=[sft_datum(n) for n in lengths])
        (result,) = _engine(tiny).forward_backward([request])
        assert not isinstance(result, RequestError)
    assert counts["divided"] == 0


@pytest.mark.parametrize("num_parts", [2, 3])
@pytest.mark.parametrize("failing", [0, 1])
def test_all_parts_have_ended_when_one_fails(failing, num_parts) -> None:
    ended = []

    def part(number: int) -> int:
        threads = torch.get_num_threads()
        ended.append(number)
        if number == failing:
            raise RuntimeError("no memory")
        return threads

    with pytest.raises(RuntimeError, match="no memory"):
        run_parts([partial(part, n) for n in range(num_parts)])
    assert sorted(ended) == list(range(num_parts))
    num_threads = torch.get_num_threads()
    assert run_parts([partial(part, 10 + n) for n in range(num_parts)]) == [1] * num_parts
    assert torch.get_num_threads() == num_threads


def test_the_number_of_parts_is_the_number_of_threads_up_to_four() -> None:
    num_threads = torch.get_num_threads()
    try:
        for count, num_parts in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 1)):
            torch.set_num_threads(count)
            assert num_part_threads(torch.zeros(1)) == num_parts
    finally:
        torch.set_num_threads(num_threads)
    assert num_part_threads(torch.zeros(1, device="meta")) == 1
