"""How values are spread: counts up to fixed bounds, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Distribution"]


class Distribution:
    """Counts of values up to each bound. Not locked: its owner guards it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, and infinity at the end, how many values were not above it."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))
