"""What the policy-gradient losses report, against plain formulas on the oracle's logprobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.oracle import Oracle
from tests.engine.work import policy_datum, train, warm_up
from tinkex.client.chunking import combine
from tinkex.engine.interface import LoraSpec, TrainDatum, TrainResult
from tinkex.losses import BUILT_IN
from tinkex.scheduler.convert import train_output

BOUNDS = {"ppo": (0.8, 1.2), "gspo": (0.8, 1.2), "cispo": (0.0, 4.0)}
LOSSES = ["importance_sampling", "dro", *BOUNDS]


def sampled(length: int, loss_fn: str, seed: int = 0) -> TrainDatum:
    """A prompt of a third of the length, recorded with zeros, and one action of advantage 0."""
    datum = policy_datum(length, seed)
    datum.inputs["logprobs"][: length // 3] = 0
    datum.inputs["advantages"][length // 3] = 0
    if loss_fn == "gspo":
        datum.inputs["sequence_ratio_mask"] = (datum.inputs["logprobs"] != 0).astype(np.float32)
    return datum


def expected(oracle: Oracle, loss_fn: str, data: list[TrainDatum]) -> dict[str, float]:
    rows: dict[str, list[np.ndarray[Any, Any]]] = {}
    for datum in data:
        new = oracle.target_logprobs(datum).detach().double().numpy()
        old = datum.inputs["logprobs"].astype(np.float64)
        is_action = np.arange(len(old)) >= len(old) // 3
        new, old = new[is_action], old[is_action]
        ratio = np.exp(new - old)
        own = np.full_like(ratio, np.exp((new - old).mean())) if loss_fn == "gspo" else ratio
        found = {
            "kl_sample_train_k1:mean": old - new,
            "kl_sample_train_k3:mean": ratio - 1 - np.log(ratio),
            "ratio:mean": own,
            "ratio:max": own,
            "entropy_sampler:mean": -old,
        }
        if loss_fn in BOUNDS:
            low, high = BOUNDS[loss_fn]
            found["clipped:mean"] = (own < low) | (own > high)
        for name, values in found.items():
            rows.setdefault(name, []).append(values)
    return {
        name: float(
            max(each.max() for each in parts)
            if name.endswith(":max")
            else np.mean([each.mean() for each in parts])
        )
        for name, parts in rows.items()
    }


@pytest.mark.parametrize("loss_fn", LOSSES)
def test_values_are_those_of_plain_formulas(loss_fn, engine, tiny, tmp_path) -> None:
    data = [sampled(13, loss_fn), sampled(6, loss_fn), sampled(13, loss_fn, 1)]
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
    warm_up(engine, "a")
    result = train(engine, "a", data, loss_fn)
    engine.save_adapter("a", tmp_path / "a", "weights")
    metrics = dict(result.metrics)
    del metrics["loss:sum"]
    assert metrics == pytest.approx(
        expected(Oracle(tiny, tmp_path / "a"), loss_fn, data), rel=1e-3, abs=1e-4
    )
    assert set(metrics) == {each.name for each in BUILT_IN[loss_fn].metrics}


def test_a_batch_has_the_same_metrics_however_it_is_cut(engine) -> None:
    data = [sampled(length, "ppo", length) for length in (13, 6, 9, 21, 4)]
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))

    def output(some: list[TrainDatum]) -> Any:
        result = train(engine, "a", some, "ppo")
        assert isinstance(result, TrainResult)
        return train_output(result)

    whole = combine([output(data)]).metrics
    cut = combine([output(data[:1]), output(data[1:4]), output(data[4:])]).metrics
    assert cut == pytest.approx(whole, rel=1e-4, abs=1e-5)


def test_a_ratio_beyond_all_numbers_is_no_error(engine) -> None:
    """The loss is finite since it is clipped, so the request is as good as before."""
    datum = sampled(6, "cispo")
    datum.inputs["logprobs"][3] = -1e4
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
    metrics = train(engine, "a", [datum], "cispo").metrics
    assert np.isfinite(metrics["loss:sum"])
    assert 1e20 < metrics["ratio:max"] < np.inf


def test_a_batch_without_a_sampled_target_reports_zeros(engine) -> None:
    datum = sampled(6, "ppo")
    for name in ("logprobs", "advantages"):
        datum.inputs[name][:] = 0
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
    metrics = train(engine, "a", [datum], "ppo").metrics
    assert set(metrics.values()) == {0.0}
