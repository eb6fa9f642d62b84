"""Mistakes in training requests: whose they are said to be, and that neighbours never feel them.

python -m tests.contract.mistake_scenarios [part of a scenario's name ...]
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from tests.contract.world import (
    REFUSED,
    World,
    as_datum,
    datum,
    is_user_error,
    run_scenarios,
    scenario,
    scenario_of,
)
from tests.engine.work import policy_datum, sft_datum
from tinkex.engine.interface import TrainDatum


def _changed(example: TrainDatum | None = None, **inputs: Any) -> types.Datum:
    """A good example with inputs changed, added or (None) removed."""
    base = as_datum(example or sft_datum(5))
    kept = {name: tensor for name, tensor in base.loss_fn_inputs.items() if name not in inputs}
    added = {
        name: types.TensorData.from_numpy(value)
        for name, value in inputs.items()
        if value is not None
    }
    return types.Datum(model_input=base.model_input, loss_fn_inputs={**kept, **added})


def _with_tokens(ids: list[int]) -> types.Datum:
    good = as_datum(sft_datum(5))
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids), loss_fn_inputs=good.loss_fn_inputs
    )


def _ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


MISTAKES: dict[str, tuple[Any, str, dict[str, float], str]] = {
    "nan_weight": (
        lambda: _changed(weights=np.array([1, math.nan, 1, 1, 1], np.float32)),
        "cross_entropy",
        {},
        "weights",
    ),
    "infinite_advantage": (
        lambda: _changed(policy_datum(5), advantages=np.array([1, 1, math.inf, 1, 1], np.float32)),
        "ppo",
        {},
        "advantages",
    ),
    "nan_config": (lambda: as_datum(policy_datum(5)), "dro", {"beta": math.nan}, "beta"),
    "unknown_key": (lambda: _changed(mask=_ones(5)), "cross_entropy", {}, "mask"),
    "missing_key": (lambda: _changed(weights=None), "cross_entropy", {}, "weights"),
    "missing_mask": (lambda: as_datum(policy_datum(5)), "gspo", {}, "sequence_ratio_mask"),
    "wrong_length": (lambda: _changed(weights=_ones(4)), "cross_entropy", {}, "weights"),
    "wrong_target_length": (
        lambda: _changed(target_tokens=np.arange(4), weights=_ones(4)),
        "cross_entropy",
        {},
        "target_tokens",
    ),
    "top_k_where_none_fits": (
        lambda: _changed(policy_datum(5), target_tokens=np.ones((5, 2), np.int64)),
        "ppo",
        {},
        "target_tokens",
    ),
    "float_targets": (
        lambda: _changed(target_tokens=_ones(5)),
        "cross_entropy",
        {},
        "target_tokens",
    ),
    "token_above_vocabulary": (
        lambda: _with_tokens([1, 2, 272, 4, 5]),
        "cross_entropy",
        {},
        "vocabulary",
    ),
    "negative_token": (lambda: _with_tokens([1, -2, 3, 4, 5]), "cross_entropy", {}, "vocabulary"),
    "target_above_vocabulary": (
        lambda: _changed(target_tokens=np.array([1, 2, 3, 4, 10**6])),
        "cross_entropy",
        {},
        "vocabulary",
    ),
    "no_tokens": (lambda: _with_tokens([]), "cross_entropy", {}, "empty"),
    "too_long": (lambda: as_datum(sft_datum(513)), "cross_entropy", {}, "context"),
    "unknown_loss": (lambda: datum(5), "stable_reinforce", {}, "stable_reinforce"),
    "unknown_config": (lambda: as_datum(policy_datum(5)), "ppo", {"clip": 0.2}, "clip"),
}


@scenario_of(
    "nan_weight",
    "infinite_advantage",
    "nan_config",
    "unknown_key",
    "missing_key",
    "missing_mask",
    "wrong_length",
    "wrong_target_length",
    "top_k_where_none_fits",
    "float_targets",
    "token_above_vocabulary",
    "negative_token",
    "target_above_vocabulary",
    "no_tokens",
    "too_long",
    "unknown_loss",
    "unknown_config",
)
def mistake(world: World, case: str) -> None:
    """A user error that names what is wrong; neighbours are served and gradients stay clean."""
    make, loss_fn, config, words = MISTAKES[case]
    mine = world.trained()
    neighbour = world.trained()
    good = mine.forward_backward([datum(6)], "cross_entropy")
    bad = mine.forward_backward([make()], loss_fn, config or None)
    beside = neighbour.forward_backward([datum(6)], "cross_entropy")
    step = mine.optim_step(types.AdamParams())
    other_step = neighbour.optim_step(types.AdamParams())
    with pytest.raises(REFUSED, match=re.escape(words)) as failure:
        bad.result()
    assert is_user_error(failure.value)
    assert good.result().metrics == beside.result().metrics
    assert step.result().metrics == other_step.result().metrics, "nothing of it was added"


@scenario
def one_bad_example_refuses_its_request_whole(world: World) -> None:
    training = world.trained()
    bad = [datum(6), _changed(weights=_ones(4)), datum(7)]
    with pytest.raises(tinker.RequestFailedError, match=r"data\[1\]"):
        training.forward_backward(bad, "cross_entropy").result()
    metrics = training.optim_step(types.AdamParams()).result().metrics
    assert metrics == {"grad_norm": 0.0, "skipped": 1.0}


@scenario_of("learning_rate", "beta1", "eps", "weight_decay", "grad_clip_norm")
def optimizer_mistake(world: World, field: str) -> None:
    """A number that makes no step is a user error, and the gradient is still there after it."""
    training = world.trained()
    training.forward_backward([datum(6)], "cross_entropy")
    value = {"beta1": 1.0}.get(field, -1.0)
    with pytest.raises(REFUSED, match=field) as failure:
        training.optim_step(types.AdamParams(**{field: value})).result()
    assert is_user_error(failure.value)
    assert (training.optim_step(types.AdamParams()).result().metrics or {})["grad_norm"] > 0


if __name__ == "__main__":
    run_scenarios()
