"""Entropy, and KL divergence from a reference.

With K candidates at each position (`target_tokens` of shape [N, K]) both are exact over the
candidates, whose probabilities are renormalised to 1. With one target at each position they are
estimates, which hold for targets that were sampled from the model: the value and the slope of each
term have the exact value and gradient as their expectation. Differentiating the value itself would
not give that gradient, since the sampling depends on the model too.

Shapes: N positions · K candidates · T counted positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tinkex.errors import ValidationError
from tinkex.regularizers.interface import (
    Reduction,
    Regularizer,
    RegularizerBatch,
    check_choice,
    input_tensor,
    reduce,
)
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

    Reference = str | Callable[[Sequence[Datum]], Sequence[Tensor]]

__all__ = ["KL", "Entropy", "kl_of_candidates"]

_Direction = Literal["forward", "reverse", "symmetric"]


@dataclass(frozen=True, kw_only=True)
class Entropy(Regularizer):
    """The entropy of the model at each position; by default a bonus, so its penalty is negative.

    `maximize=False` makes it a penalty on entropy. `where` names a loss input: positions where it
    is 0 do not count.

    >>> Entropy(weight=0.01, where="advantages").maximize
    True
    """

    kind: ClassVar[str] = "entropy"

    maximize: bool = True
    reduction: Reduction = "mean"
    where: str | None = None

    def _check(self) -> None:
        check_choice(self.kind, "reduction", self.reduction, ("mean", "sum"))

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The entropy, negated if it is to grow."""
        entropy = reduce(
            [
                _entropy(each[batch.counted_positions(index, self.where)])
                for index, each in enumerate(batch.logprobs)
            ],
            self.reduction,
        )
        return -entropy if self.maximize else entropy


@dataclass(frozen=True, kw_only=True)
class KL(Regularizer):
    """The KL divergence between the model and a reference.

    `reference` is the name of the loss input that holds the reference's logprobs of the targets,
    or a function that gives them for the whole batch. Directions: "reverse" is
    KL(model || reference), what reinforcement learning uses; "forward" is KL(reference || model);
    "symmetric" is the mean of both. `where` names a loss input: positions where it is 0 do not
    count.

    >>> KL(weight=0.1, direction="symmetric").reference
    'reference_logprobs'
    """

    kind: ClassVar[str] = "kl"

    reference: Reference = "reference_logprobs"
    direction: _Direction = "reverse"
    reduction: Reduction = "mean"
    where: str | None = None

    def _check(self) -> None:
        check_choice(self.kind, "direction", self.direction, ("forward", "reverse", "symmetric"))
        check_choice(self.kind, "reduction", self.reduction, ("mean", "sum"))

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The divergence of the counted positions."""
        terms = []
        for index, (logprobs, reference) in enumerate(
            zip(batch.logprobs, self._references(batch), strict=True)
        ):
            counted = batch.counted_positions(index, self.where)
            terms.append(_kl(logprobs[counted], reference[counted], self.direction))
        return reduce(terms, self.reduction)

    def _references(self, batch: RegularizerBatch) -> list[Tensor]:
        if isinstance(self.reference, str):
            name = self.reference
            return [input_tensor(batch, index, name) for index in range(len(batch.data))]
        references = list(self.reference(batch.data))
        wanted = [list(each.shape) for each in batch.logprobs]
        found = [list(each.shape) for each in references]
        if found != wanted:
            raise ValidationError(
                f"The reference function of the regularizer {self.name!r} gave tensors of shape "
                f"{found}; wanted {wanted}, one number per target."
            )
        return [each.detach() for each in references]


def _entropy(logprobs: Tensor) -> Tensor:
    if logprobs.dim() == 1:
        return _with_slope(logprobs, value=-logprobs, slope=-logprobs)
    normal = logprobs.log_softmax(dim=-1)
    return -(normal.exp() * normal).sum(dim=-1)


def _kl(logprobs: Tensor, reference: Tensor, direction: _Direction) -> Tensor:
    if direction == "symmetric":
        forward = _kl(logprobs, reference, "forward")
        return (forward + _kl(logprobs, reference, "reverse")) / 2
    if logprobs.dim() == 2:
        model, other = logprobs, reference.to(logprobs.dtype)
        first, second = (model, other) if direction == "reverse" else (other, model)
        return kl_of_candidates(first, second)
    distance = reference - logprobs.detach()
    ratio = distance.exp()
    if direction == "reverse":
        return _with_slope(logprobs, value=ratio - distance - 1, slope=-distance)
    return _with_slope(logprobs, value=ratio * distance - ratio + 1, slope=1 - ratio)


def kl_of_candidates(first_TK: Tensor, second_TK: Tensor) -> Tensor:
    """KL(first || second) at each position, over candidates renormalised to 1."""
    first, second = first_TK.log_softmax(dim=-1), second_TK.log_softmax(dim=-1)
    return (first.exp() * (first - second)).sum(dim=-1)


def _with_slope(logprobs: Tensor, *, value: Tensor, slope: Tensor) -> Tensor:
    """Terms with these values, and these derivatives by the logprobs."""
    return value.detach() + slope.detach() * (logprobs - logprobs.detach())
