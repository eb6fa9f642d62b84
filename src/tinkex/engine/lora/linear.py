"""The product of a frozen matrix and the LoRA of each row's adapter, and its backward.

Shapes: T tokens of all sequences in a row · D features in · O features out · R rank times the
number of matrices fused on one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tinkex.engine.ops.linear import FrozenLinear, product

__all__ = ["LoraPair", "LoraRows", "Segment", "lora_linear", "lora_linear_backward"]


_FEW_ROWS = 96
"""Maximum rows: up to here the call of oneDNN costs more than it saves in a gradient."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """LoRA of matrices fused on one input: their A stacked, and each one's B.

    The change of output part j is `scale * x @ A_j.T @ B_j.T`. If the pair is being trained, its
    `gradient` is a pair to which the gradients are added.
    """

    a_RD: Tensor
    bs_OR: tuple[Tensor, ...]
    scale: float
    gradient: LoraPair | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """A value that is equal for pairs of one rank at one site."""
        return (*self.a_RD.shape, *(b_OR.shape[0] for b_OR in self.bs_OR))


class LoraRows(Protocol):
    """Rows of the batch with what their adapters add to a frozen product."""

    def add(self, x_TD: Tensor, y_TO: Tensor) -> Tensor:
        """Adds the LoRA of these rows to y, in place; returns `scale * x @ A.T`, its tape."""
        ...

    def backward(self, x_TD: Tensor, down: Tensor, dys_TO: Sequence[Tensor], dx_TD: Tensor) -> None:
        """Adds the LoRA's share to dx, in place, and the weights' gradients to their pairs'."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start..end` of the batch, which belong to one adapter."""

    start: int
    end: int
    pair: LoraPair

    @property
    def rows(self) -> slice:
        """The range of rows."""
        return slice(self.start, self.end)

    def add(self, x_TD: Tensor, y_TO: Tensor) -> Tensor:
        down_TR = down_project(x_TD[self.rows], self.pair)
        add_up_projection(y_TO[self.rows], down_TR, self.pair)
        return down_TR

    def backward(self, x_TD: Tensor, down: Tensor, dys_TO: Sequence[Tensor], dx_TD: Tensor) -> None:
        parts = [dy_TO[self.rows] for dy_TO in dys_TO]
        pair_backward(self.pair, x_TD[self.rows], down, parts, dx_TD[self.rows])


def lora_linear(
    x_TD: Tensor, linear: FrozenLinear, rows: Sequence[LoraRows], plus_TO: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Returns the frozen product of `x`, added to `plus` if given, with the LoRA of all these rows.

    The second result is the tape that the backward of each of `rows` needs.
    """
    y_TO = linear.forward(x_TD, plus_TO)
    return y_TO, [some.add(x_TD, y_TO) for some in rows]


def lora_linear_backward(
    dys_TO: Sequence[Tensor],
    x_TD: Tensor,
    linear: FrozenLinear,
    rows: Sequence[LoraRows],
    downs: list[Tensor],
) -> Tensor:
    """Returns the gradient by `x`; adds those of the LoRA weights to their pairs' gradients.

    dy comes in parts, one for each B.
    """
    dx_TD = linear.backward(dys_TO)
    for some, down in zip(rows, downs, strict=True):
        some.backward(x_TD, down, dys_TO, dx_TD)
    return dx_TD


def down_project(x_TD: Tensor, pair: LoraPair) -> Tensor:
    """Returns `scale * x @ A.T` of all parts side by side."""
    return product(x_TD, pair.a_RD.to(x_TD.dtype)).mul_(pair.scale)


def add_up_projection(y_TO: Tensor, down_TR: Tensor, pair: LoraPair) -> None:
    """Adds each part's `down @ B.T` to its columns of y, in place."""
    rank, column = down_TR.shape[1] // len(pair.bs_OR), 0
    for j, b_OR in enumerate(pair.bs_OR):
        part = y_TO[:, column : column + b_OR.shape[0]]
        part.addmm_(down_TR[:, j * rank : (j + 1) * rank], b_OR.to(y_TO.dtype).T)
        column += b_OR.shape[0]


def pair_backward(
    pair: LoraPair,
    x_TD: Tensor,
    down_TR: Tensor,
    dys_TO: Sequence[Tensor],
    dx_TD: Tensor,
) -> None:
    """Adds the gradients of A and each B to the pair's, and the LoRA's share to dx, in place."""
    parts = [product(dy, b.to(dy.dtype).T) for dy, b in zip(dys_TO, pair.bs_OR, strict=True)]
    ddown_TR = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).mul_(pair.scale)
    dx_TD.addmm_(ddown_TR, pair.a_RD.to(x_TD.dtype))
    if pair.gradient is None:
        return
    multiply = torch.mm if x_TD.shape[0] <= _FEW_ROWS else _product_of
    pair.gradient.a_RD.add_(multiply(ddown_TR.T, x_TD))
    # B's gradient is made transposed: as a product of few rows it is ten times faster.
    downs_RT = down_TR.T.contiguous().chunk(len(dys_TO))
    for dy_TO, down_RT, slot_OR in zip(dys_TO, downs_RT, pair.gradient.bs_OR, strict=True):
        slot_OR.add_(multiply(down_RT, dy_TO).T)


def _product_of(left: Tensor, right: Tensor) -> Tensor:
    return product(left, right.T)
