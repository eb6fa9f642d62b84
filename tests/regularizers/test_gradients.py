"""Values and gradients of every regularizer, against formulas in numpy and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.regularizers.batches import (
    Rows,
    datum_of,
    finite_differences,
    nothing,
    run,
    squares,
)
from tinkex.regularizers import (
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    Entropy,
    GradientPenalty,
    Orthogonality,
    Regularizer,
)

RANDOM = np.random.default_rng(7)
WEIGHT = 0.3
FLAT: Rows = [-RANDOM.uniform(0.2, 3, size=5), -RANDOM.uniform(0.2, 3, size=4)]
COUNTS = [[0, 1, 1, 0, 1], [1, 0, 1, 1]]
"""Three targets of each example count."""
CANDIDATES: Rows = [-RANDOM.uniform(0.2, 3, size=(3, 4)), -RANDOM.uniform(0.2, 3, size=(3, 4))]
REFERENCES: Rows = [
    -RANDOM.uniform(0.2, 3, size=(3, 4)).astype(np.float32).astype(float) for _ in range(2)
]
"""Numbers that a float32 input of a datum holds exactly."""
FLAT_DATA = [
    datum_of([len(row)], mask=mask, pair=[1.0]) for row, mask in zip(FLAT, COUNTS, strict=True)
]
CANDIDATE_DATA = [
    datum_of([3, 4], reference_logprobs=reference, pair=[1.0]) for reference in REFERENCES
]


def counted(rows: Rows) -> list[Any]:
    return [row[np.array(mask) == 1] for row, mask in zip(rows, COUNTS, strict=True)]


def everything(rows: Rows) -> Any:
    return np.concatenate([row.reshape(-1) for row in rows])


def normal(row: Any) -> Any:
    shares = np.exp(row) / np.exp(row).sum(axis=-1, keepdims=True)
    return np.log(shares)


def kl(first: Any, second: Any) -> Any:
    first, second = normal(first), normal(second)
    return (np.exp(first) * (first - second)).sum(axis=-1)


def mean_kl(rows: Rows, direction: str) -> float:
    forward = np.mean([kl(q, p) for p, q in zip(rows, REFERENCES, strict=True)])
    reverse = np.mean([kl(p, q) for p, q in zip(rows, REFERENCES, strict=True)])
    values = {"forward": forward, "reverse": reverse, "symmetric": (forward + reverse) / 2}
    return float(values[direction])


def cosine(rows: Rows, center: bool) -> float:
    one, other = (row - row.mean() * center for row in counted(rows))
    return float((one @ other / np.linalg.norm(one) / np.linalg.norm(other)) ** 2)


def pairwise(rows: Rows, distance: Callable[[Any], Any]) -> float:
    one, other = counted(rows)
    return float(np.mean(distance(one - other)))


def entropy(rows: Rows) -> float:
    return float(np.mean([-(np.exp(normal(r)) * normal(r)).sum(axis=-1) for r in rows]))


FLAT_CASES: list[tuple[Regularizer, Callable[[Rows], float]]] = [
    (L1(weight=WEIGHT), lambda rows: np.abs(everything(rows)).mean()),
    (
        L1(weight=WEIGHT, of="probs", reduction="sum"),
        lambda rows: np.exp(everything(rows)).sum(),
    ),
    (L1(weight=WEIGHT, where="mask"), lambda rows: np.abs(everything(counted(rows))).mean()),
    (L2(weight=WEIGHT), lambda rows: (everything(rows) ** 2).mean()),
    (
        L2(weight=WEIGHT, of="probs", where="mask", reduction="sum"),
        lambda rows: (np.exp(everything(counted(rows))) ** 2).sum(),
    ),
    (
        ElasticNet(weight=WEIGHT, l1_ratio=0.25),
        lambda rows: (0.25 * np.abs(everything(rows)) + 0.75 * everything(rows) ** 2).mean(),
    ),
    (
        Consistency(weight=WEIGHT, where="mask"),
        lambda rows: pairwise(rows, np.square),
    ),
    (
        Consistency(weight=WEIGHT, pairs=lambda data: [(0, 1)], distance="absolute", where="mask"),
        lambda rows: pairwise(rows, np.abs),
    ),
    (Orthogonality(weight=WEIGHT, where="mask"), lambda rows: cosine(rows, center=True)),
    (
        Orthogonality(weight=WEIGHT, where="mask", center=False),
        lambda rows: cosine(rows, center=False),
    ),
]
CANDIDATE_CASES: list[tuple[Regularizer, Callable[[Rows], float]]] = [
    (Entropy(weight=WEIGHT), lambda rows: -entropy(rows)),
    (Entropy(weight=WEIGHT, maximize=False), entropy),
    (KL(weight=WEIGHT, direction="forward"), lambda rows: mean_kl(rows, "forward")),
    (KL(weight=WEIGHT), lambda rows: mean_kl(rows, "reverse")),
    (KL(weight=WEIGHT, direction="symmetric"), lambda rows: mean_kl(rows, "symmetric")),
    (
        Consistency(weight=WEIGHT, distance="kl"),
        lambda rows: float(np.mean((kl(*rows) + kl(*rows[::-1])) / 2)),
    ),
]


def name_of(case: Any) -> str:
    return f"{case.name}" if isinstance(case, Regularizer) else ""


@pytest.mark.parametrize(("regularizer", "oracle"), FLAT_CASES, ids=name_of)
def test_one_target_at_each_position(
    regularizer: Regularizer, oracle: Callable[[Rows], float]
) -> None:
    check(regularizer, oracle, FLAT_DATA, FLAT)


@pytest.mark.parametrize(("regularizer", "oracle"), CANDIDATE_CASES, ids=name_of)
def test_candidates_at_each_position(
    regularizer: Regularizer, oracle: Callable[[Rows], float]
) -> None:
    check(regularizer, oracle, CANDIDATE_DATA, CANDIDATES)


def check(
    regularizer: Regularizer,
    oracle: Callable[[Rows], float],
    data: list[Any],
    rows: Rows,
) -> None:
    copies = [row.copy() for row in rows]
    loss, slopes, metrics = run([regularizer], data, copies)
    expected = finite_differences(lambda changed: WEIGHT * oracle(changed), copies)
    prefix = f"regularizer/{regularizer.name}"
    assert metrics[f"{prefix}/value"] == pytest.approx(oracle(copies), rel=1e-9)
    assert metrics[f"{prefix}/contribution"] == pytest.approx(loss, rel=1e-9)
    assert loss == pytest.approx(WEIGHT * oracle(copies), rel=1e-9)
    for slope, wanted in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-8)
    norm = np.linalg.norm(everything(expected))
    assert norm > 1e-3, "a gradient of 0 would prove nothing"
    assert metrics[f"{prefix}/grad_norm"] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("target", [0.0, 2.5])
def test_the_gradient_penalty_of_a_loss_that_is_not_linear(target: float) -> None:
    regularizer = GradientPenalty(weight=WEIGHT, target_norm=target)

    def oracle(rows: Rows) -> float:
        values = everything(rows)  # the loss's slope is twice each logprob
        return float((values**2).sum() + WEIGHT * (np.linalg.norm(2 * values) - target) ** 2)

    rows = [row.copy() for row in FLAT]
    loss, slopes, metrics = run([regularizer], FLAT_DATA, rows, base=squares)
    assert loss == pytest.approx(oracle(rows))
    assert metrics["base_loss"] == pytest.approx((everything(rows) ** 2).sum())
    for slope, wanted in zip(slopes, finite_differences(oracle, rows), strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-7)


def test_the_gradient_penalty_of_a_linear_loss_is_reported_and_changes_nothing() -> None:
    def linear(_data: Any, logprobs: Any) -> Any:
        return -sum(each.sum() for each in logprobs), {}

    _, slopes, metrics = run([GradientPenalty(weight=WEIGHT)], FLAT_DATA, FLAT, base=linear)
    assert metrics["regularizer/gradient_penalty/value"] == pytest.approx(9.0)
    assert metrics["regularizer/gradient_penalty/grad_norm"] == 0.0
    assert all((slope == -1).all() for slope in slopes)


def test_a_gradient_penalty_at_a_gradient_of_zero_is_finite() -> None:
    rows = [np.zeros(5), np.zeros(4)]
    _, slopes, _ = run([GradientPenalty(weight=1.0)], FLAT_DATA, rows, base=squares)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_regularizers_add_up() -> None:
    parts = [L1(weight=0.1), L2(weight=0.2), GradientPenalty(weight=0.05)]
    together, slopes, metrics = run(parts, FLAT_DATA, FLAT, base=squares)
    base, base_slopes, _ = run([], FLAT_DATA, FLAT, base=squares)
    alone = [run([each], FLAT_DATA, FLAT, base=squares) for each in parts]
    assert together == pytest.approx(base + sum(loss - base for loss, _, _ in alone))
    assert metrics["regularizer/total"] == pytest.approx(together - base)
    for index, slope in enumerate(slopes):
        added = sum(found[index] - base_slopes[index] for _, found, _ in alone)
        np.testing.assert_allclose(slope, base_slopes[index] + added, atol=1e-12)


def test_a_weight_of_zero_measures_and_changes_nothing() -> None:
    loss, slopes, metrics = run([L2(weight=0)], FLAT_DATA, FLAT, base=nothing)
    assert loss == 0
    assert metrics["regularizer/l2/value"] > 0
    assert all((slope == 0).all() for slope in slopes)
