"""Adapters of one rank and different alpha side by side: each gets the numbers peft gives it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.oracle import Oracle, assert_same, saved_gradients
from tests.engine.work import run_samples, sample_request, sft_datum, tokens, warm_up
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, TrainRequest
from tinkex.engine.lora.adapter import AdapterWeights, LoraGroup, LoraLayout, LoraTarget
from tinkex.engine.lora.row_layout import RowPlanner
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

RANK = 4


def _engine(tiny: Path) -> TorchEngine:
    return TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30))


def _adapters(engine: TorchEngine, alphas: list[float], folder: Path) -> None:
    """Trained adapters a0, a1, ..., each saved as a peft folder of its name."""
    for n, alpha in enumerate(alphas):
        engine.create_adapter(f"a{n}", "tiny", LoraSpec(rank=RANK, seed=n, alpha=alpha))
        warm_up(engine, f"a{n}")
        engine.save_adapter(f"a{n}", folder / f"a{n}")


@pytest.mark.parametrize("alphas", [[32.0, 5.0], [32.0] * 4 + [5.0] * 4, [8.0, 64.0, 8.0, 64.0]])
def test_gradients_of_a_mixed_batch_are_the_oracles(alphas, tiny, tmp_path) -> None:
    engine = _engine(tiny)
    _adapters(engine, alphas, tmp_path)
    requests = [
        TrainRequest(adapter_id=f"a{n}", data=[sft_datum(9, n)]) for n in range(len(alphas))
    ]
    results = engine.forward_backward(requests)
    for n, (request, result) in enumerate(zip(requests, results, strict=True)):
        oracle = Oracle(tiny, tmp_path / f"a{n}")
        loss = oracle.loss("cross_entropy", list(request.data))
        loss.backward()
        assert result.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-5)
        engine.save_adapter(f"a{n}", tmp_path / f"g{n}", "all")
        assert_same(saved_gradients(tmp_path / f"g{n}"), oracle.gradients(), rtol=1e-4)


@pytest.mark.usefixtures("with_and_without_kernels")
@pytest.mark.parametrize("alphas", [[32.0, 5.0], [8.0, 64.0, 8.0, 64.0]])
def test_samples_of_a_mixed_batch_have_the_oracles_logprobs(alphas, tiny, tmp_path) -> None:
    engine = _engine(tiny)
    _adapters(engine, alphas, tmp_path)
    for n in range(len(alphas)):
        engine.snapshot(f"a{n}", f"s{n}")
    prompt = tokens(6)
    requests = [
        sample_request(f"r{n}", sampler_id=f"s{n}", tokens=prompt, max_tokens=12, stop=[])
        for n in range(len(alphas))
    ]
    answers = run_samples(engine, *requests)
    for n in range(len(alphas)):
        (sequence,) = answers[f"r{n}"].sequences
        full = np.concatenate([prompt, sequence.tokens])
        with torch.no_grad():
            scores = Oracle(tiny, tmp_path / f"a{n}").all_logprobs(full)
        chosen = scores[np.arange(len(prompt) - 1, len(full) - 1), sequence.tokens]
        np.testing.assert_allclose(sequence.logprobs, chosen, atol=1e-4)


def _weights(alpha: float) -> AdapterWeights:
    groups = [LoraGroup("first", "attn", (LoraTarget("t", 8, 8),))]
    layout = LoraLayout(groups, LoraSpec(rank=2, alpha=alpha))
    return AdapterWeights(layout, torch.randn(layout.numel))


def test_only_adapters_of_one_alpha_share_a_stack() -> None:
    planner = RowPlanner(2**20, torch.zeros(1))
    alike = planner.plan([_weights(8.0), _weights(8.0)])
    assert (len(alike.stacked), len(alike.runs)) == (1, 0)
    mixed = planner.plan([_weights(8.0), _weights(16.0), _weights(8.0), _weights(16.0)])
    scales = [stack.pairs["first"].scale for stack in mixed.stacked]
    assert sorted(scales) == [4.0, 8.0]


@pytest.mark.parametrize("scope", ["weights", "optimizer", "all"])
def test_folders_keep_alpha(scope, engine, tmp_path) -> None:
    spec = LoraSpec(rank=RANK, seed=1, alpha=7.5)
    engine.create_adapter("a", "tiny", spec)
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a", scope)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (RANK, 7.5)
    assert engine.load_adapter("b", "tiny", tmp_path / "a", scope).spec == spec
    engine.save_adapter("b", tmp_path / "b", scope)
    name = "adapter_model.safetensors"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def _rewrite_spec(folder: Path, change: dict[str, object], drop: str = "") -> None:
    path = folder / "tinkex_adapter.json"
    content = json.loads(path.read_text())
    content["spec"] = {k: v for k, v in (content["spec"] | change).items() if k != drop}
    path.write_text(json.dumps(content))
    (folder / "tinkex_files.json").unlink()  # hashes of the file as it was


def test_a_folder_from_before_alpha_was_stored_has_32(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=RANK))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a", "all")
    _rewrite_spec(tmp_path / "a", {}, drop="alpha")
    assert engine.load_adapter("b", "tiny", tmp_path / "a", "all").spec.alpha == 32.0
    engine.save_adapter("b", tmp_path / "b", "all")
    for name in ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("alpha", [0, -1.0, 65_537.0, 5e-324])
def test_a_folder_with_an_impossible_alpha_is_refused(alpha, engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=RANK))
    engine.save_adapter("a", tmp_path / "a")
    _rewrite_spec(tmp_path / "a", {"alpha": alpha})
    with pytest.raises(EngineUserError, match=r"alpha must be above 0|make no scale") as caught:
        engine.load_sampler("s", "tiny", tmp_path / "a")
    assert caught.value.code == "damaged-checkpoint"


@pytest.mark.parametrize("alpha", [0.0, -8.0, float("nan"), float("inf"), 65_537.0])
def test_an_impossible_alpha_is_refused(alpha, engine) -> None:
    with pytest.raises(EngineUserError, match="at most 65536") as caught:
        engine.create_adapter("a", "tiny", LoraSpec(rank=RANK, alpha=alpha))
    assert (caught.value.code, caught.value.field) == ("alpha-out-of-range", "alpha")
