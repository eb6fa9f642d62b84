"""A regularizer from a function that the user gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tinkex.errors import ValidationError
from tinkex.regularizers.interface import Regularizer, RegularizerBatch
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

    PenaltyFn = Callable[[list[Datum], list[Tensor]], Tensor | Awaitable[Tensor]]

__all__ = ["Own"]


@dataclass(frozen=True, kw_only=True)
class Own(Regularizer):
    """`fn(data, logprobs)` as a penalty: a function or a coroutine function that gives a scalar.

    A function runs in a thread of its own beside the other regularizers, a coroutine on an event
    loop that they share. The name of the function is the name in metrics, unless one is given.

    >>> def long_answers(data, logprobs):
    ...     return sum(each.sum() for each in logprobs) / 100
    >>> Own(fn=long_answers, weight=0.1).name
    'long_answers'
    """

    kind: ClassVar[str] = "own"

    fn: PenaltyFn

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ValidationError(f"fn={self.fn!r} must be a function of (data, logprobs).")
        if not self.name:
            name = getattr(self.fn, "__name__", "")
            object.__setattr__(self, "name", name if name.isidentifier() else self.kind)
        Regularizer.__post_init__(self)

    def penalty(self, batch: RegularizerBatch) -> Tensor | Awaitable[Tensor]:
        """What the function returns."""
        return self.fn(list(batch.data), list(batch.logprobs))
