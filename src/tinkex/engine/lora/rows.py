"""The LoRA of a step's rows, for sampling: no gradients, and views that are made once.

Rows of one adapter lie side by side. Each run of rows takes two products per place; where many
adapters have a few rows each, runs of equal size are taken together as one batched product over
adapters that lie side by side in memory too (`adapter_stack`).

Shapes: T rows · D features in · O features out · R rank times fused matrices · A adapters ·
B rows of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import AdapterWeights

__all__ = ["RowLora", "Run", "SitePair", "StackedRun", "fused_parts", "pair_views"]


@dataclass(frozen=True, slots=True)
class SitePair:
    """LoRA at one site, ready to multiply: A, and for each fused matrix its columns of the output,
    its columns of A's product, and B. With adapters stacked all tensors have one more axis."""

    a_DR: Tensor
    parts: tuple[tuple[slice, slice, Tensor], ...]
    scale: float


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `start..end`, which belong to one adapter."""

    start: int
    end: int
    pairs: dict[str, SitePair]


@dataclass(frozen=True, slots=True)
class StackedRun:
    """Rows `start..end`, the same number for each of the adapters."""

    start: int
    end: int
    num_adapters: int
    pairs: dict[str, SitePair]


class RowLora:
    """The adapter of each row of a step; rows in no run use the base model alone."""

    def __init__(self, num_rows: int, runs: list[Run], stacked: list[StackedRun]) -> None:
        self._num_rows = num_rows
        self._runs, self._stacked = runs, stacked

    def add(self, site: str, x_TD: Tensor, y_TO: Tensor) -> None:
        """Adds the LoRA of this site to the base model's output."""
        for stack in self._stacked:
            pair = stack.pairs.get(site)
            if pair is not None:
                shape = (stack.num_adapters, -1)
                x_ABD = torch.unflatten(x_TD[stack.start : stack.end], 0, shape)
                y_ABO = torch.unflatten(y_TO[stack.start : stack.end], 0, shape)
                _add_stacked(pair, x_ABD, y_ABO)
        for run in self._runs:
            pair = run.pairs.get(site)
            if pair is not None:
                x, y = x_TD, y_TO
                if run.end - run.start < self._num_rows:
                    x, y = x_TD[run.start : run.end], y_TO[run.start : run.end]
                _add(pair, x, y)

    def select(self, indices: Tensor) -> RowLora:
        """Returns the LoRA of these rows, in rising order. Only where no adapters are stacked."""
        assert not self._stacked, "the rows of stacked adapters lie in equal numbers"
        edges = [(int((indices < r.start).sum()), int((indices < r.end).sum())) for r in self._runs]
        runs = [Run(a, b, r.pairs) for (a, b), r in zip(edges, self._runs, strict=True) if a < b]
        return RowLora(len(indices), runs, [])


def _add(pair: SitePair, x_TD: Tensor, y_TO: Tensor) -> None:
    down_TR = torch.mm(x_TD, pair.a_DR)
    if len(pair.parts) == 1:  # nothing to cut up
        y_TO.addmm_(down_TR, pair.parts[0][2], alpha=pair.scale)
        return
    for out, rank, b_RO in pair.parts:
        y_TO[:, out].addmm_(down_TR[:, rank], b_RO, alpha=pair.scale)


def _add_stacked(pair: SitePair, x_ABD: Tensor, y_ABO: Tensor) -> None:
    down_ABR = torch.bmm(x_ABD, pair.a_DR)
    if len(pair.parts) == 1:
        y_ABO.baddbmm_(down_ABR, pair.parts[0][2], alpha=pair.scale)
        return
    for out, rank, b_ARO in pair.parts:
        # With a slice of columns as output, torch would multiply adapter by adapter.
        y_ABO[:, :, out].add_(torch.bmm(down_ABR[:, :, rank], b_ARO), alpha=pair.scale)


_views: WeakKeyDictionary[AdapterWeights, dict[str, SitePair]] = WeakKeyDictionary()


def pair_views(weights: AdapterWeights, dtype: torch.dtype) -> dict[str, SitePair]:
    """Returns the adapter's LoRA by site, in the model's type."""
    if weights not in _views:
        _views[weights] = {
            site: SitePair(
                pair.a_RD.to(dtype).T,
                fused_parts([b_OR.to(dtype).T for b_OR in pair.bs_OR]),
                pair.scale,
            )
            for site, pair in weights.pairs.items()
        }
    return _views[weights]


def fused_parts(bs_RO: list[Tensor]) -> tuple[tuple[slice, slice, Tensor], ...]:
    """Returns the fused matrices B, each with its columns of the output and of A's product."""
    parts, column, rank = [], 0, 0
    for b in bs_RO:
        parts.append((slice(column, column + b.shape[-1]), slice(rank, rank + b.shape[-2]), b))
        column, rank = column + b.shape[-1], rank + b.shape[-2]
    return tuple(parts)
