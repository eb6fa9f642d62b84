"""What a RegularizedLoss reports, how it runs its regularizers, and what it refuses."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.regularizers.batches import datum_of, nothing, run, squares
from tinkex import telemetry
from tinkex.errors import ValidationError
from tinkex.regularizers import (
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    GradientPenalty,
    Orthogonality,
    Own,
    RegularizedLoss,
)

DATA = [datum_of([3]), datum_of([2])]
ROWS = [np.array([-1.0, -2.0, -3.0]), np.array([-0.5, -1.5])]
START, STOP, EXCEPTION = (
    f"tinkex.regularizer.compute.{each}" for each in ("start", "stop", "exception")
)
Seen = list[tuple[str, dict[str, Any], dict[str, Any]]]


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The events of regularizers, in order."""
    found: Seen = []
    telemetry.attach(
        "test-regularizers",
        "tinkex.regularizer.*",
        lambda event, measured, about, _: found.append((event, measured, about)),
    )
    yield found
    telemetry.detach("test-regularizers")


def total(_data: Any, logprobs: Any) -> Any:
    return sum(each.sum() for each in logprobs)


def test_events_carry_what_is_documented(seen: Seen) -> None:
    _, _, metrics = run([L2(weight=0.5)], DATA, ROWS)
    (start, _, about), (stop, measured, about_stop) = seen
    assert (start, stop) == (START, STOP)
    assert about == about_stop == {"regularizer_name": "l2", "weight": 0.5}
    assert measured.pop("duration") >= 0
    assert measured == {
        key: metrics[f"regularizer/l2/{key}"] for key in ("value", "contribution", "grad_norm")
    }


def test_a_regularizer_that_fails_is_an_event_and_raises_its_own_error(seen: Seen) -> None:
    def broken(_data: Any, _logprobs: Any) -> Any:
        raise ZeroDivisionError("no such number")

    with pytest.raises(ZeroDivisionError, match="no such number"):
        run([Own(fn=broken, weight=1.0), L2(weight=1.0)], DATA, ROWS)
    ends = {about["regularizer_name"]: event for event, _, about in seen if event != START}
    assert ends == {"broken": EXCEPTION, "l2": STOP}
    ((_, measured, about),) = [each for each in seen if each[0] == EXCEPTION]
    assert measured["duration"] >= 0
    assert about == {"regularizer_name": "broken", "weight": 1.0, "error": "no such number"}


def test_functions_and_coroutines_run_side_by_side() -> None:
    """Each waits for the other two: one after the other, they would wait for ever."""
    everyone = threading.Barrier(2)
    arrived = asyncio.Event()

    def one(data: Any, logprobs: Any) -> Any:
        everyone.wait(60)
        return total(data, logprobs)

    def two(data: Any, logprobs: Any) -> Any:
        everyone.wait(60)
        return 2 * total(data, logprobs)

    async def three(data: Any, logprobs: Any) -> Any:
        await asyncio.wait_for(arrived.wait(), 60)
        return 3 * total(data, logprobs)

    async def four(data: Any, logprobs: Any) -> Any:
        arrived.set()
        return 4 * total(data, logprobs)

    penalties = [Own(fn=each, weight=1.0) for each in (one, two, three, four)]
    loss, slopes, metrics = run(penalties, DATA, ROWS)
    assert loss == pytest.approx(10 * -8.0)
    assert all((slope == 10).all() for slope in slopes)
    assert metrics["regularizer/three/value"] == pytest.approx(-24.0)


def test_a_loss_can_be_computed_inside_a_running_loop() -> None:
    async def later(data: Any, logprobs: Any) -> Any:
        await asyncio.sleep(0)
        return total(data, logprobs)

    async def main() -> float:
        return run([Own(fn=later, weight=1.0)], DATA, ROWS)[0]

    assert asyncio.run(main()) == pytest.approx(-8.0)


def test_regularizers_see_the_callers_context() -> None:
    temperature = contextvars.ContextVar("temperature", default=1.0)
    temperature.set(3.0)

    def scaled(data: Any, logprobs: Any) -> Any:
        return temperature.get() * total(data, logprobs)

    assert run([Own(fn=scaled, weight=1.0)], DATA, ROWS)[0] == pytest.approx(-24.0)


def test_metrics_of_the_base_loss_stay() -> None:
    def base(_data: Any, logprobs: Any) -> Any:
        return total(_data, logprobs), {"mine": 4.0}

    _, _, metrics = run([L1(weight=1.0)], DATA, ROWS, base=base)
    assert metrics["mine"] == 4.0
    assert metrics["base_loss"] == -8.0


def test_two_of_a_kind_need_names() -> None:
    with pytest.raises(ValidationError, match="Two regularizers are called 'l2'"):
        RegularizedLoss(nothing, [L2(weight=1.0), L2(weight=2.0)])
    _, _, metrics = run([L2(weight=1.0), L2(weight=2.0, name="probs", of="probs")], DATA, ROWS)
    assert {"regularizer/l2/value", "regularizer/probs/value"} <= metrics.keys()


@pytest.mark.parametrize("result", [3.0, torch.ones(2), None])
def test_a_penalty_that_is_no_scalar_is_refused(result: Any) -> None:
    with pytest.raises(ValidationError, match="'odd' must give a scalar tensor"):
        run([Own(fn=lambda *_: result, weight=1.0, name="odd")], DATA, ROWS)


def test_a_penalty_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValidationError, match="'odd' gave nan"):
        run([Own(fn=lambda d, lp: total(d, lp) * np.nan, weight=1.0, name="odd")], DATA, ROWS)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    rows = [np.zeros(3), np.zeros(2)]
    with pytest.raises(ValidationError, match="gradient norm of nan"):
        run([Own(fn=lambda _, lp: lp[0][0].abs().sqrt(), weight=1, name="odd")], DATA, rows)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: L2(weight=float("nan")), "finite"),
        (lambda: L2(weight="much"), "finite"),
        (lambda: L2(weight=1.0, name="a b"), "name"),
        (lambda: L1(weight=1.0, of="odds"), "'probs'"),
        (lambda: L1(weight=1.0, reduction="max"), "'mean'"),
        (lambda: ElasticNet(weight=1.0, l1_ratio=2.0), "between 0 and 1"),
        (lambda: KL(weight=1.0, direction="up"), "'reverse'"),
        (lambda: Consistency(weight=1.0, distance="far"), "'squared'"),
        (lambda: GradientPenalty(weight=1.0, target_norm=-1.0), "0 or more"),
        (lambda: Own(weight=1.0, fn=3), "function"),
        (lambda: RegularizedLoss(nothing, [total]), "Own"),
        (lambda: RegularizedLoss("cross_entropie", []), "cross_entropy"),
        (lambda: RegularizedLoss("ppo", [], config={"beta": 1.0}), "beta"),
        (lambda: RegularizedLoss(nothing, [], config={"beta": 1.0}), "config"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        make()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("penalty", "said"),
    [
        (KL(weight=1.0), "Example 0 has no loss_fn_inputs['reference_logprobs']"),
        (L2(weight=1.0, where="short"), "shape [1]"),
        (KL(weight=1.0, reference=lambda _: [torch.ones(3)]), "[[3], [2]]"),
        (Consistency(weight=1.0), "must hold one number"),
        (Consistency(weight=1.0, pairs=lambda _: [(0, 1)]), "[3] and [2]"),
        (Consistency(weight=1.0, pairs=lambda _: [(0, 2)]), "names no examples"),
        (Consistency(weight=1.0, pairs=lambda _: [(0, 0)], distance="kl"), "[N, K]"),
        (Orthogonality(weight=1.0), "[3, 2]"),
    ],
)
def test_examples_that_do_not_fit_are_refused(penalty: Any, said: str) -> None:
    data = [datum_of([3], short=[1.0]), datum_of([2], short=[1.0])]
    with pytest.raises(ValidationError) as refused:
        run([penalty], data, ROWS)
    assert said in str(refused.value)


def test_no_pairs_cost_nothing() -> None:
    data = [datum_of([3], pair=[1.0]), datum_of([2], pair=[2.0])]
    loss, slopes, _ = run([Consistency(weight=1.0)], data, ROWS, base=squares)
    assert loss == pytest.approx(sum((row**2).sum() for row in ROWS))
    np.testing.assert_allclose(slopes[0], 2 * ROWS[0])


def test_a_loss_says_what_it_is() -> None:
    loss = RegularizedLoss("ppo", [L2(weight=0.1), KL(weight=0.01, name="drift")])
    assert repr(loss) == "<RegularizedLoss ppo + [0.1 * l2, 0.01 * drift]>"
