"""Runs for the page to show."""

from __future__ import annotations

from typing import NamedTuple

import tinkex
from tinkex import types

HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that must stay a text."""


class Trained(NamedTuple):
    """A run and its checkpoints."""

    run_id: str
    state: str
    sampler: str


def datum(first: int = 40) -> types.Datum:
    """A short example."""
    ids = list(range(first, first + 12))
    return types.Datum(
        types.ModelInput.from_ints(ids[:-1]),
        {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )


def step(training: tinkex.TrainingClient) -> None:
    """One step, done."""
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result(60)


def start(
    service: tinkex.ServiceClient, model: str, name: str, steps: int
) -> tinkex.TrainingClient:
    """A new run with so many steps."""
    training = service.create_lora_training_client(model, rank=4, user_metadata={"name": name})
    for _ in range(steps):
        step(training)
    return training


def train(service: tinkex.ServiceClient, model: str) -> Trained:
    """A new run with a hostile name, three steps, and weights of both kinds."""
    training = start(service, model, HOSTILE, 3)
    state = training.save_state("halfway").result(60)
    sampler = training.save_weights_for_sampler("sampler").result(60)
    return Trained(run_id=training.model_id, state=state.path, sampler=sampler.path)
