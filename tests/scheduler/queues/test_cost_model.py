"""How long work is expected to take, after work like it ran."""

from __future__ import annotations

import random

import pytest

from tests.scheduler.work import operation
from tinkex.scheduler.queues.cost_model import CostModel
from tinkex.store.operations import Operation


def run(costs: CostModel, batch: list[Operation], per_pass: float, per_token: float) -> None:
    passes = max(sum(o.model_id == each.model_id for o in batch) for each in batch)
    costs.record("b", batch, passes * per_pass + per_token * sum(each.cost for each in batch))


def forwards(model_id: str, count: int, cost: int) -> list[Operation]:
    return [operation(model_id, n, kind="forward", cost=cost) for n in range(count)]


def test_time_per_pass_and_per_token_are_estimated_separately() -> None:
    costs, dice = CostModel(), random.Random(3)
    for _ in range(30):
        batch = forwards("a", dice.randint(1, 4), dice.randint(10, 2000))
        run(costs, batch, per_pass=0.01, per_token=1e-4)
    short, long = (forwards("a", 1, cost)[0] for cost in (10, 4000))
    assert costs.estimate("b", short).seconds == pytest.approx(0.011, rel=0.05)
    assert costs.estimate("b", long).seconds == pytest.approx(0.41, rel=0.05)


def test_operations_of_one_length_are_expected_to_take_what_they_took() -> None:
    costs = CostModel()
    for _ in range(5):
        run(costs, forwards("a", 1, 64), per_pass=0.012, per_token=0.0)
    estimate = costs.estimate("b", forwards("a", 1, 64)[0])
    assert estimate.seconds == pytest.approx(0.012)
    again = operation("a", 1, kind="forward", cost=64)
    assert estimate.adds_pass(again)
    assert estimate.seconds_with(again) == pytest.approx(0.024)


def test_another_model_shares_the_pass() -> None:
    costs, dice = CostModel(), random.Random(4)
    for _ in range(30):
        run(costs, forwards("a", 1, dice.randint(10, 2000)), per_pass=0.5, per_token=1e-4)
    estimate = costs.estimate("b", forwards("a", 1, 100)[0])
    other = operation("other", 0, kind="forward", cost=100)
    assert not estimate.adds_pass(other)
    assert estimate.seconds_with(other) == pytest.approx(0.52, rel=0.05)


def test_no_estimate_is_negative_for_any_measurements() -> None:
    dice = random.Random(5)
    for _ in range(200):
        costs = CostModel()
        for _ in range(dice.randint(1, 6)):
            batch = forwards("a", dice.randint(1, 5), dice.randint(1, 500))
            costs.record("b", batch, dice.random())
        for tokens in (1, 100, 10_000):
            assert costs.estimate("b", forwards("a", 1, tokens)[0]).seconds >= 0


def test_old_batches_are_forgotten() -> None:
    costs = CostModel()
    for seconds in (5.0, *[0.01] * 80):
        costs.record("b", forwards("a", 1, 64), seconds)
    assert costs.estimate("b", forwards("a", 1, 64)[0]).seconds < 0.02


def test_bases_and_kinds_are_measured_apart() -> None:
    costs = CostModel()
    costs.record("b", [operation("a", 0, kind="optim_step")], 0.004)
    costs.record("b", forwards("a", 1, 64), 0.9)
    costs.record("other", forwards("a", 1, 64), 0.1)
    step = costs.estimate("b", operation("a", 0, kind="optim_step"))
    assert step.seconds == pytest.approx(0.004)
    assert step.seconds_with(operation("c", 0, kind="optim_step")) == pytest.approx(0.008)
