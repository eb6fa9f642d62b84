"""Consistency: penalises different logprobs in pairs of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Literal

from tinkex.errors import ValidationError
from tinkex.regularizers.distributions import kl_of_candidates
from tinkex.regularizers.interface import (
    Reduction,
    Regularizer,
    RegularizerBatch,
    check_choice,
    reduce,
)
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

    Pairs = str | Callable[[Sequence[Datum]], Iterable[tuple[int, int]]]

__all__ = ["Consistency"]


@dataclass(frozen=True, kw_only=True)
class Consistency(Regularizer):
    """The distance between examples with the same answer to differently worded prompts.

    `pairs` is the name of a loss input with one number, equal in examples that belong together, or
    a function that gives the pairs as indices. `where` names a loss input that is not 0 for the
    targets to compare, so that prompts may differ in length. Distances of logprobs: "squared",
    "absolute", or, for K candidates at each position, "kl", symmetric.

    >>> Consistency(weight=0.5, where="weights").pairs
    'pair'
    """

    kind: ClassVar[str] = "consistency"

    pairs: Pairs = "pair"
    distance: Literal["squared", "absolute", "kl"] = "squared"
    reduction: Reduction = "mean"
    where: str | None = None

    def _check(self) -> None:
        check_choice(self.kind, "distance", self.distance, ("squared", "absolute", "kl"))
        check_choice(self.kind, "reduction", self.reduction, ("mean", "sum"))

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The distance over all pairs; 0 without a pair."""
        rows = [
            each[batch.counted_positions(index, self.where)]
            for index, each in enumerate(batch.logprobs)
        ]
        distances = [self._distance(rows, *pair) for pair in self._pairs(batch)]
        return reduce(distances or [batch.loss.new_zeros(0)], self.reduction)

    def _pairs(self, batch: RegularizerBatch) -> list[tuple[int, int]]:
        if not isinstance(self.pairs, str):
            return [
                _within(first, second, len(batch.data)) for first, second in self.pairs(batch.data)
            ]
        groups: dict[float, list[int]] = {}
        for index, datum in enumerate(batch.data):
            groups.setdefault(_number(datum, index, self.pairs), []).append(index)
        return [pair for members in groups.values() for pair in combinations(members, 2)]

    def _distance(self, rows: Sequence[Tensor], first: int, second: int) -> Tensor:
        one, other = rows[first], rows[second]
        if one.shape != other.shape:
            raise ValidationError(
                f"Examples {first} and {second} are to be consistent, but {list(one.shape)} and "
                f"{list(other.shape)} of their targets count.",
                hint="Name a loss input in where= that is 0 outside of what they share.",
            )
        if self.distance == "kl":
            if one.dim() != 2:
                raise ValidationError(
                    "distance='kl' takes target_tokens of shape [N, K]: candidates at each "
                    f"position. Those of example {first} have one dimension."
                )
            return (kl_of_candidates(one, other) + kl_of_candidates(other, one)) / 2
        difference = one - other
        return difference.abs() if self.distance == "absolute" else difference.square()


def _number(datum: Datum, index: int, name: str) -> float:
    given = datum.loss_fn_inputs.get(name)
    values = [] if given is None else given.to_torch().reshape(-1).tolist()
    if len(values) != 1:
        raise ValidationError(
            f"loss_fn_inputs[{name!r}] of example {index} must hold one number, equal in examples "
            f"that belong together; it holds {len(values)}."
        )
    return float(values[0])


def _within(first: int, second: int, num_examples: int) -> tuple[int, int]:
    if not (0 <= first < num_examples and 0 <= second < num_examples):
        raise ValidationError(
            f"The pair ({first}, {second}) names no examples of a batch of {num_examples}."
        )
    return first, second
