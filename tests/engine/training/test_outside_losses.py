"""Losses declared outside the package train through the engine as plain autograd says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.oracle import Oracle, assert_same, saved_gradients
from tests.engine.work import policy_datum, sft_datum, tokens, train, warm_up
from tests.support.loss_package import BROKEN, FOCAL, SEQUENCE_ERROR, write_package
from tinkex.engine.interface import LoraSpec, RequestError, TrainDatum, TrainRequest, TrainResult
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine


@pytest.fixture
def start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TorchEngine]:
    """Starts an engine with the losses of an outside package and an adapter `a`."""
    sources = {"focal": FOCAL, "sequence_error": SEQUENCE_ERROR, "broken": BROKEN}
    monkeypatch.syspath_prepend(write_package(tmp_path / "site", "outside-losses", **sources))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def started(**options: Any) -> TorchEngine:
        models = {"tiny": str(tiny)}
        engine = TorchEngine(EngineOptions(models=models, losses=tuple(sources), **options))
        engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
        warm_up(engine, "a")
        return engine

    return started


def sequence_datum(length: int, wanted: float = -4.0, label: int = 1) -> TrainDatum:
    inputs = {
        "target_tokens": tokens(length, 9),
        "wanted": np.array([wanted], np.float32),
        "label": np.full(length, label),
    }
    return TrainDatum(tokens=tokens(length), inputs=inputs)


@pytest.mark.parametrize("microbatch_tokens", [1024, 14])
@pytest.mark.parametrize("config", [{}, {"gamma": 0.5}], ids=["default", "gamma"])
def test_focal_loss_is_that_of_autograd(
    start, tiny, tmp_path, config: dict[str, float], microbatch_tokens: int
) -> None:
    engine = start(microbatch_tokens=microbatch_tokens)
    data = [sft_datum(13), sft_datum(5), sft_datum(9, 1)]
    result = train(engine, "a", data, "focal", **config)
    engine.save_adapter("a", tmp_path / "a", "all")

    oracle = Oracle(tiny, tmp_path / "a")
    loss = torch.zeros(())
    every_lp = []
    for datum in data:
        lp = oracle.target_logprobs(datum)
        weights = torch.tensor(datum.inputs["weights"])
        loss = loss - (weights * (1 - lp.exp()) ** config.get("gamma", 2.0) * lp).sum()
        every_lp.append(lp.detach())
    loss.backward()
    lp = torch.cat(every_lp)
    assert result.metrics == pytest.approx(
        {
            "loss:sum": loss.item(),
            "probability:mean": np.mean([each.exp().mean().item() for each in every_lp]),
            "logprob:min": lp.min().item(),
        },
        rel=2e-5,
    )
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


def test_loss_over_whole_sequences_is_that_of_autograd(start, tiny, tmp_path) -> None:
    engine = start()
    data = [sequence_datum(13), sequence_datum(5, -1.0), sequence_datum(8, -2.0, label=0)]
    result = train(engine, "a", data, "sequence_error")
    engine.save_adapter("a", tmp_path / "a", "all")

    oracle = Oracle(tiny, tmp_path / "a")
    first, second = (oracle.target_logprobs(datum).mean() for datum in data[:2])
    loss = (first + 4.0) ** 2 + (second + 1.0) ** 2
    loss.backward()
    assert result.metrics == pytest.approx({"loss:sum": loss.item()}, rel=2e-5)
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


def _with(datum: TrainDatum, **inputs: np.ndarray) -> TrainDatum:
    return TrainDatum(tokens=datum.tokens, inputs={**datum.inputs, **inputs})


REFUSED = {
    "weight below": (
        "focal",
        _with(sft_datum(3), weights=np.array([1, -0.5, 0], np.float32)),
        {},
        "bad-loss-input",
        r"data\[0\].inputs.weights\[1\]=-0.5 must be between 0 and 10",
    ),
    "option above": ("focal", sft_datum(3), {"gamma": 9.0}, "bad-loss-config", "between 0 and 5"),
    "no such option": ("focal", sft_datum(3), {"delta": 1.0}, "unknown-loss-config", "gamma"),
    "top-k targets": (
        "focal",
        _with(sft_datum(3), target_tokens=np.ones((3, 2), np.int64)),
        {},
        "wrong-length",
        r"wanted \[3\]",
    ),
    "other inputs": ("focal", policy_datum(3), {}, "unknown-loss-input", "target_tokens, weights"),
    "missing": (
        "sequence_error",
        TrainDatum(tokens=tokens(3), inputs={"target_tokens": tokens(3)}),
        {},
        "missing-loss-input",
        "label, target_tokens, wanted",
    ),
    "fractions": (
        "sequence_error",
        _with(sequence_datum(3), label=np.array([0, 0.5, 1], np.float32)),
        {},
        "bad-loss-input",
        "must be integers, got float32",
    ),
    "one per target": (
        "sequence_error",
        _with(sequence_datum(3), wanted=np.zeros(3, np.float32)),
        {},
        "wrong-length",
        "one number per datum",
    ),
    "logprob above 0": (
        "sequence_error",
        sequence_datum(3, wanted=0.5),
        {},
        "bad-loss-input",
        r"wanted\[0\]=0.5 must be at most 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_declared_bounds_are_kept(case: str, start) -> None:
    loss_fn, datum, config, code, words = REFUSED[case]
    request = TrainRequest(adapter_id="a", data=[datum], loss_fn=loss_fn, loss_config=config)
    (refusal,) = start().forward_backward([request])
    assert isinstance(refusal, RequestError)
    assert (refusal.kind, refusal.code) == ("user", code)
    assert re.search(words, refusal.message), refusal.message


def test_a_failing_loss_ends_its_request_alone(start) -> None:
    engine = start()
    engine.create_adapter("b", "tiny", LoraSpec(rank=4, seed=2))
    datum = TrainDatum(tokens=tokens(4), inputs={"target_tokens": tokens(4)})
    bad = TrainRequest(adapter_id="a", data=[datum], loss_fn="broken")
    good = TrainRequest(adapter_id="b", data=[sft_datum(5)], loss_fn="focal")
    failure, result = engine.forward_backward([bad, good])
    assert isinstance(failure, RequestError)
    assert failure.kind == "server"
    assert "Loss 'broken' raised KeyError" in failure.message
    assert isinstance(result, TrainResult)
    pending = {each.adapter_id: each.pending_backwards for each in engine.adapters()}
    assert pending == {"a": 0, "b": 1}


def test_the_engine_says_which_losses_it_has(start) -> None:
    (info,) = start().models()
    assert set(info.losses) > {"cross_entropy", "focal", "sequence_error"}
