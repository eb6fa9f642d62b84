"""Several adapters with few rows each, multiplied together.

A product of few rows with a thin matrix takes less time than its call, and a layer has some twenty
of them for every adapter. Adapters of one rank whose rows are neighbours therefore go through
batched products: their matrices are copied side by side for the moment, and rows of different
numbers are filled up with zeros. What an adapter gets does not depend on the others' numbers, but
its last bits are not those of its own products. So a few adapters, which gain little, stay apart.

Shapes: T tokens of all sequences in a row · S adapters · N rows of the one that has most · D
features in · O features out · R rank times the number of matrices fused on one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from tinkex.engine.lora.linear import LoraRows, Segment

__all__ = ["together"]

_MOST_ROWS = 128
_MOST_NUMBERS = 2**18
"""Maximum rows of an adapter, and numbers in its matrices: beyond, its own products are worth their
calls, and copies would cost more than they save."""

_FEWEST = 4
"""Minimum adapters for which a batched product pays."""

_MOST_WASTE = 2
"""Maximum padding: rows multiplied, relative to the rows there are."""

_THIN = 16
"""Below this rank the gradient of B is computed transposed too; beyond, adding it up costs more."""


def together(segments: Sequence[Segment]) -> list[LoraRows]:
    """Returns the segments, with adjacent ones of one shape combined."""
    found: list[LoraRows] = []
    group: list[Segment] = []
    for segment in segments:
        if group and not _can_join(group, segment):
            found += _as_one(group)
            group = []
        group.append(segment)
    return [*found, *_as_one(group)]


def _can_join(group: list[Segment], segment: Segment) -> bool:
    first, last = group[0], group[-1]
    if last.end != segment.start or not (_is_small(first) and _is_small(segment)):
        return False
    counts = [each.end - each.start for each in (*group, segment)]
    if max(counts) * len(counts) > _MOST_WASTE * sum(counts):
        return False
    pairs = first.pair, segment.pair
    is_alike = pairs[0].shape == pairs[1].shape and pairs[0].scale == pairs[1].scale
    return is_alike and (pairs[0].gradient is None) == (pairs[1].gradient is None)


def _is_small(segment: Segment) -> bool:
    numbers = segment.pair.a_RD.numel() + sum(b_OR.numel() for b_OR in segment.pair.bs_OR)
    return segment.end - segment.start <= _MOST_ROWS and numbers <= _MOST_NUMBERS


def _as_one(group: list[Segment]) -> Sequence[LoraRows]:
    return group if len(group) < _FEWEST else [_Together(group)]


class _Together:
    """Adjacent rows of several adapters of one shape."""

    def __init__(self, segments: list[Segment]) -> None:
        self._pairs = [segment.pair for segment in segments]
        self._rows = slice(segments[0].start, segments[-1].end)
        self._counts = tuple(segment.end - segment.start for segment in segments)
        self._scale = self._pairs[0].scale
        self._num_parts = len(self._pairs[0].bs_OR)

    def add(self, x_TD: Tensor, y_TO: Tensor) -> Tensor:
        x_SDN, y_TO = self._side_by_side(x_TD).transpose(1, 2), y_TO[self._rows]
        # The rank is the first axis, here and in the backward: with a small rank that is much
        # faster.
        down_SRN = torch.bmm(self._a(x_TD), x_SDN).mul_(self._scale)
        column = 0
        for j, part_SRN in enumerate(down_SRN.chunk(self._num_parts, dim=1)):
            b_SOR = self._b(j, y_TO)
            up_SNO = torch.bmm(part_SRN.transpose(1, 2), b_SOR.transpose(1, 2))
            y_TO[:, column : column + b_SOR.shape[1]].add_(self._in_a_row(up_SNO))
            column += b_SOR.shape[1]
        return down_SRN

    def backward(self, x_TD: Tensor, down: Tensor, dys_TO: Sequence[Tensor], dx_TD: Tensor) -> None:
        dys_SNO = [self._side_by_side(dy_TO) for dy_TO in dys_TO]
        parts = [
            torch.bmm(self._b(j, dy).transpose(1, 2), dy.transpose(1, 2))
            for j, dy in enumerate(dys_SNO)
        ]
        ddown_SRN = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).mul_(self._scale)
        dx_SND = torch.bmm(ddown_SRN.transpose(1, 2), self._a(x_TD))
        dx_TD[self._rows].add_(self._in_a_row(dx_SND))
        if self._pairs[0].gradient is None:
            return
        self._add_gradient(None, torch.bmm(ddown_SRN, self._side_by_side(x_TD)))
        for j, part_SRN in enumerate(down.chunk(self._num_parts, dim=1)):
            self._add_gradient(j, _b_gradient(part_SRN, dys_SNO[j]))

    def _add_gradient(self, part: int | None, found_S: Tensor) -> None:
        """Adds the results to each adapter's gradient of A (`part` None) or of that B."""
        for pair, found in zip(self._pairs, found_S.unbind(0), strict=True):
            assert pair.gradient is not None, "all or none of them are trained"
            slot = pair.gradient.a_RD if part is None else pair.gradient.bs_OR[part]
            slot.add_(found)

    def _a(self, like: Tensor) -> Tensor:
        return torch.stack([pair.a_RD for pair in self._pairs]).to(like.dtype)

    def _b(self, part: int, like: Tensor) -> Tensor:
        return torch.stack([pair.bs_OR[part] for pair in self._pairs]).to(like.dtype)

    def _side_by_side(self, x_TD: Tensor) -> Tensor:
        """Returns the rows by adapter, [S, N, D], padded with zeros."""
        x_TD = x_TD[self._rows]
        place_T = _places(self._counts, x_TD.device)
        if place_T is not None:
            rows = x_TD.new_zeros(len(self._pairs) * max(self._counts), x_TD.shape[1])
            x_TD = rows.index_copy_(0, place_T, x_TD)
        return torch.unflatten(x_TD, 0, (len(self._pairs), -1))

    def _in_a_row(self, x_SND: Tensor) -> Tensor:
        """Returns the rows in the order of the batch."""
        x_XD = x_SND.flatten(0, 1)
        place_T = _places(self._counts, x_XD.device)
        return x_XD if place_T is None else x_XD.index_select(0, place_T)


@lru_cache(maxsize=64)
def _places(counts: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Returns the index of each row among the padded rows; None if no padding is needed."""
    width = max(counts)
    if min(counts) == width:
        return None
    places = [torch.arange(count) + i * width for i, count in enumerate(counts)]
    return torch.cat(places).to(device)


def _b_gradient(down_SRN: Tensor, dy_SNO: Tensor) -> Tensor:
    """Returns `dy.T @ down` of each adapter."""
    if down_SRN.shape[1] < _THIN:
        return torch.bmm(down_SRN, dy_SNO).transpose(1, 2)
    return torch.bmm(dy_SNO.transpose(1, 2), down_SRN.transpose(1, 2))
