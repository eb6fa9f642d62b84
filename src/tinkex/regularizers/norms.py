"""L1, L2 and elastic net over the logprobs or probabilities of the targets."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tinkex.regularizers.interface import (
    Reduction,
    Regularizer,
    RegularizerBatch,
    check_choice,
    check_number,
    reduce,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["L1", "L2", "ElasticNet"]


@dataclass(frozen=True, kw_only=True)
class _Norm(Regularizer):
    """A function of each target's logprob or probability, averaged or summed.

    `where` names a loss input: targets where it is 0 do not count.
    """

    of: Literal["logprobs", "probs"] = "logprobs"
    reduction: Reduction = "mean"
    where: str | None = None

    def _check(self) -> None:
        check_choice(self.kind, "of", self.of, ("logprobs", "probs"))
        check_choice(self.kind, "reduction", self.reduction, ("mean", "sum"))

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The norm of the counted targets."""
        logprobs = batch.counted(self.where)
        numbers = logprobs if self.of == "logprobs" else [each.exp() for each in logprobs]
        return reduce([self._of_each(each) for each in numbers], self.reduction)

    @abstractmethod
    def _of_each(self, numbers: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class L1(_Norm):
    """`mean |x|` of the targets' logprobs or probabilities.

    >>> L1(weight=0.01, of="probs", where="weights").name
    'l1'
    """

    kind: ClassVar[str] = "l1"

    def _of_each(self, numbers: Tensor) -> Tensor:
        return numbers.abs()


@dataclass(frozen=True, kw_only=True)
class L2(_Norm):
    """`mean x**2` of the targets' logprobs or probabilities.

    >>> L2(weight=0.01).of
    'logprobs'
    """

    kind: ClassVar[str] = "l2"

    def _of_each(self, numbers: Tensor) -> Tensor:
        return numbers.square()


@dataclass(frozen=True, kw_only=True)
class ElasticNet(_Norm):
    """`l1_ratio * L1 + (1 - l1_ratio) * L2`.

    >>> ElasticNet(weight=0.01, l1_ratio=0.2).name
    'elastic_net'

    Raises:
        ValidationError: `l1_ratio` lies outside 0..1.
    """

    kind: ClassVar[str] = "elastic_net"

    l1_ratio: float = 0.5

    def _check(self) -> None:
        _Norm._check(self)
        check_number(self.kind, "l1_ratio", self.l1_ratio, 0.0, 1.0)

    def _of_each(self, numbers: Tensor) -> Tensor:
        return self.l1_ratio * numbers.abs() + (1 - self.l1_ratio) * numbers.square()
