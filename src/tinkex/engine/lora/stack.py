"""Adapters side by side in memory, so that one batched product serves the rows of many.

Holds copies, each made when an adapter first shares a step with another, kept up to a size. A step
takes a range of places; one whose adapter has no rows in it costs empty rows, so places are given
out from the front.

Shapes: S places · X numbers of an adapter · D features in · O features out · R rank times fused
matrices.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import AdapterWeights, LoraLayout
from tinkex.engine.lora.rows import SitePair, fused_parts

__all__ = ["AdapterStack"]

_MOST_PLACES = 32


class AdapterStack:
    """Memory for as many adapters of one layout and scale as fit `max_bytes`."""

    def __init__(self, layout: LoraLayout, max_bytes: int, like: Tensor) -> None:
        self._layout = layout
        count = min(_MOST_PLACES, max_bytes // (layout.numel * like.element_size()))
        self._flat_SX = like.new_empty(count, layout.numel)
        self._place_of: OrderedDict[int, int] = OrderedDict()  # the latest used last
        self._views: dict[tuple[int, int], dict[str, SitePair]] = {}

    def place(self, adapters: list[AdapterWeights]) -> list[int] | None:
        """Returns the place of each adapter, copied in if needed; None if there are too many."""
        if len(adapters) > self._flat_SX.shape[0]:
            return None
        for weights in adapters:
            if weights.identity in self._place_of:
                self._place_of.move_to_end(weights.identity)
        for weights in adapters:
            if weights.identity not in self._place_of:
                place = self._free_place()
                self._flat_SX[place] = weights.flat
                self._place_of[weights.identity] = place
        return [self._place_of[weights.identity] for weights in adapters]

    def pairs(self, first: int, last: int) -> dict[str, SitePair]:
        """Returns the LoRA of places first..last, by site."""
        key = (first, last)
        if key not in self._views:
            self._views[key] = self._make_views(self._flat_SX[first : last + 1])
        return self._views[key]

    def _free_place(self) -> int:
        taken = set(self._place_of.values())
        free = next((i for i in range(self._flat_SX.shape[0]) if i not in taken), None)
        return self._place_of.popitem(last=False)[1] if free is None else free

    def _make_views(self, flat_SX: Tensor) -> dict[str, SitePair]:
        found, start = {}, 0

        def matrix(rows: int, columns: int) -> Tensor:
            nonlocal start
            end = start + rows * columns
            part = torch.unflatten(flat_SX[:, start:end], 1, (rows, columns)).transpose(1, 2)
            start = end
            return part

        for group in self._layout.groups:
            rank = self._layout.rank
            a_SDR = matrix(rank * len(group.targets), group.targets[0].in_features)
            bs_SRO = [matrix(target.out_features, rank) for target in group.targets]
            found[group.site] = SitePair(a_SDR, fused_parts(bs_SRO), self._layout.scale)
        return found
