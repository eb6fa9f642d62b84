"""Uploaded losses in the engine: gradients against autograd, and company in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.custom_loss.graphs import traced
from tests.engine.oracle import Oracle, assert_same, saved_gradients
from tests.engine.work import policy_datum, sft_datum, tokens, top_k_datum, warm_up
from tinkex.engine.interface import LoraSpec, RequestError, TrainDatum, TrainRequest, TrainResult
from tinkex.engine.null import NullEngine


def clipped(logprobs: Any, old: Any, advantages: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    worst = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    return -worst.sum(), {"custom/ratio:mean": ratio.mean(), "custom/n:sum": logprobs.shape[0]}


def spread(logprobs: Any, weights: Any) -> Any:
    """A target's slope depends on all targets of its sequence."""
    return (logprobs * weights).sum() ** 2 / weights.sum() + logprobs.std(), {}


def distilled(logprobs: Any, weights: Any) -> Any:
    return -(weights * logprobs).sum(), {"custom/entropy:sum": -(weights * weights.log1p()).sum()}


def breaks(logprobs: Any, weights: Any) -> Any:
    """Fails on sequences of another length than the first one's."""
    return (logprobs[:9] * weights[-9:]).reshape(9).sum(), {}


def rl_datum(length: int, seed: int = 0) -> TrainDatum:
    datum = policy_datum(length, seed)
    datum.inputs["old"] = datum.inputs["logprobs"]
    return datum


CASES = {
    "clipped": (clipped, ("old", "advantages"), 1, [rl_datum(13), rl_datum(6), rl_datum(13, 1)]),
    "spread": (spread, ("weights",), 1, [sft_datum(13), sft_datum(5)]),
    "distilled": (distilled, ("weights",), 2, [top_k_datum(9, 3), top_k_datum(4, 5)]),
}


def request_of(case: str, adapter_id: str = "a", **changes: Any) -> TrainRequest:
    fn, names, rank, data = CASES[case]
    loss = traced(fn, dict.fromkeys(("logprobs", *names), rank))
    return TrainRequest(
        **{"adapter_id": adapter_id, "data": data, "loss_fn": "custom", "custom_loss": loss}
        | changes
    )


@pytest.mark.parametrize("case", CASES)
def test_loss_metrics_and_gradients_are_those_of_autograd(case, engine, tiny, tmp_path) -> None:
    fn, names, _, data = CASES[case]
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
    warm_up(engine, "a")
    (result,) = engine.forward_backward([request_of(case)])
    assert isinstance(result, TrainResult), result
    (scored,) = engine.forward_backward([request_of(case, backward=False)])
    engine.save_adapter("a", tmp_path / "a", "all")

    oracle = Oracle(tiny, tmp_path / "a")
    found = [
        fn(oracle.target_logprobs(datum), *(torch.tensor(datum.inputs[n]) for n in names))
        for datum in data
    ]
    loss = sum((each for each, _ in found), torch.zeros(()))
    loss.backward()
    assert result.metrics["loss:sum"] == pytest.approx(loss.item(), rel=2e-5, abs=1e-4)
    assert scored.metrics == pytest.approx(result.metrics, rel=1e-6)
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)
    for name in found[0][1]:
        values = [float(torch.as_tensor(metrics[name]).detach()) for _, metrics in found]
        expected = np.mean(values) if name.endswith(":mean") else np.sum(values)
        assert result.metrics[name] == pytest.approx(expected, rel=1e-4)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        assert logprobs.shape == datum.inputs["target_tokens"].shape


def test_a_loss_that_fails_ends_its_request_alone(engine, tmp_path) -> None:
    """Also where it fails on a later datum, when its batch has run."""
    for adapter_id in "abc":
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=3, seed=2))
    broken = request_of(
        "spread",
        "b",
        data=[sft_datum(9), sft_datum(5), sft_datum(4)],
        custom_loss=traced(breaks, {"logprobs": 1, "weights": 1}),
    )
    first = request_of("spread", "b", data=[sft_datum(5)], custom_loss=broken.custom_loss)
    plain = TrainRequest(adapter_id="c", data=[sft_datum(7)])
    batch = [request_of("clipped"), broken, plain]
    beside = engine.forward_backward(batch)
    alone = [engine.forward_backward([request_of("clipped")])[0]]
    assert isinstance(beside[1], RequestError)
    assert beside[1].code == "custom-loss-failed"
    assert beside[0].metrics == alone[0].metrics
    assert isinstance(beside[2], TrainResult)
    assert {each.adapter_id: each.pending_backwards for each in engine.adapters()} == {
        "a": 2,
        "b": 0,
        "c": 1,
    }
    (refused,) = engine.forward_backward([first])
    assert isinstance(refused, RequestError)


@pytest.mark.parametrize("kind", ["torch", "null"])
def test_inputs_must_be_there_in_their_rank(kind, engine) -> None:
    used = engine if kind == "torch" else NullEngine(("tiny",))
    used.create_adapter("a", "tiny", LoraSpec(rank=3, seed=2))
    length = 5
    wrong = {
        "a rank": {"weights": np.ones((length, 1), np.float32)},
        "none": {"target_tokens": tokens(length)},
        "targets of rank 2": {
            "target_tokens": tokens(length)[:, None],
            "weights": np.ones(length, np.float32),
        },
    }
    for inputs in wrong.values():
        inputs = {"target_tokens": tokens(length), **inputs}
        data = [TrainDatum(tokens=tokens(length), inputs=inputs)]
        (refused,) = used.forward_backward([request_of("spread", data=data)])
        assert isinstance(refused, RequestError)
        assert refused.code == "wrong-loss-input", refused
    (empty,) = used.forward_backward([request_of("spread", data=[])])
    assert empty.code == "empty-data"
    (bad,) = used.forward_backward([request_of("spread", custom_loss=b"{}")])
    assert bad.code == "bad-custom-loss"
    (fine,) = used.forward_backward([request_of("spread")])
    assert isinstance(fine, TrainResult)
