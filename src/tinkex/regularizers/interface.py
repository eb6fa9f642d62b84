"""What a regularizer is, what it is computed from, and which targets it counts.

Shapes: N positions of one example · K targets at each of them · T counted targets of one example.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tinkex.errors import ValidationError
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Reduction", "Regularizer", "RegularizerBatch", "input_tensor", "reduce"]

Reduction = Literal["mean", "sum"]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class RegularizerBatch:
    """A batch with the logprobs of its targets, and the loss without penalties.

    `logprobs[i]` has the shape of the `target_tokens` of `data[i]`.
    """

    data: Sequence[Datum]
    logprobs: Sequence[Tensor]
    loss: Tensor

    def counted(self, where: str | None) -> list[Tensor]:
        """Per example its logprobs as [T]: those of all targets, or of those where the input of
        that name is not 0.

        Raises:
            ValidationError: an example lacks the input, or it does not fit the targets.
        """
        return [
            each.reshape(-1) if where is None else each[self._mask(index, where)]
            for index, each in enumerate(self.logprobs)
        ]

    def counted_positions(self, index: int, where: str | None) -> Tensor:
        """Which positions of an example count, as booleans [N].

        Args:
            index: The place of the example in the batch.
            where: Positions count where this loss input is not 0; None counts all.
        """
        logprobs = self.logprobs[index]
        if where is None:
            return logprobs.new_ones(logprobs.shape[0]).bool()
        mask = self._mask(index, where)
        return mask if mask.dim() == 1 else mask.any(dim=1)

    def _mask(self, index: int, where: str) -> Tensor:
        return input_tensor(self, index, where) != 0


def input_tensor(batch: RegularizerBatch, index: int, name: str) -> Tensor:
    """An input of an example, as a tensor in the shape of its targets.

    Raises:
        ValidationError: the example lacks it, or it has another shape.
    """
    given = batch.data[index].loss_fn_inputs.get(name)
    if given is None:
        raise ValidationError(
            f"Example {index} has no loss_fn_inputs[{name!r}], which a regularizer takes."
        )
    tensor: Tensor = given.to_torch()
    wanted = batch.logprobs[index].shape
    if tensor.shape != wanted:
        raise ValidationError(
            f"loss_fn_inputs[{name!r}] of example {index} has shape {list(tensor.shape)}; the "
            f"regularizer takes one number per target, {list(wanted)}."
        )
    return tensor


def reduce(values: Sequence[Tensor], reduction: Reduction) -> Tensor:
    """The sum or the mean of all numbers in these tensors; 0 if there are none."""
    import torch

    flat = torch.cat([each.reshape(-1) for each in values])
    return flat.sum() if reduction == "sum" else flat.sum() / max(1, flat.numel())


@dataclass(frozen=True, kw_only=True)
class Regularizer(ABC):
    """A penalty: `weight * penalty(batch)` is added to the loss.

    `name` is what metrics and events call it; two of one kind in a loss need names of their own.

    Raises:
        ValidationError: the weight is not a finite number, or the name cannot be a part of a
            metric's name.
    """

    kind: ClassVar[str] = "regularizer"

    weight: float
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)
        if not _is_number(self.weight):
            raise ValidationError(
                f"weight={self.weight!r} of the regularizer {self.name!r} must be a finite number."
            )
        if not _NAME.fullmatch(self.name):
            raise ValidationError(
                f"The name {self.name!r} of a regularizer must be letters, digits, '_', '.' or "
                "'-', at most 64."
            )
        self._check()

    def _check(self) -> None:  # noqa: B027 - not every one has settings
        """Refuses values that make no sense; a regularizer with settings overrides it."""

    @abstractmethod
    def penalty(self, batch: RegularizerBatch) -> Tensor | Awaitable[Tensor]:
        """The penalty before its weight: a scalar that autograd can differentiate."""


def check_choice(owner: str, setting: str, value: Any, choices: Sequence[str]) -> None:
    """Returns if the value is one of the choices.

    Raises:
        ValidationError: it is not.
    """
    if value not in choices:
        raise ValidationError(
            f"{setting}={value!r} of {owner} must be one of {', '.join(map(repr, choices))}."
        )


def check_number(owner: str, setting: str, value: Any, low: float, high: float) -> None:
    """Returns if the value is a number from low to high.

    Raises:
        ValidationError: it is not.
    """
    if not _is_number(value) or not low <= value <= high:
        wanted = f"{low:g} or more" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValidationError(f"{setting}={value!r} of {owner} must be {wanted}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
