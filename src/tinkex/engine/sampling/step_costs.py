"""Seconds that a sampling step takes, by its number of rows, as measured lately.

Pure: the caller measures. Rows are those of the whole pass: a token of a running sequence or of a
prompt is one row. Steps of 2**(k-1)+1 to 2**k rows are one size class, whose cost is the fastest of
its last few steps, since what else the machine does only ever makes a step slower.
"""

from __future__ import annotations

import math
from collections import deque

__all__ = ["StepCosts"]

_NUM_KEPT = 8
"""Number of last steps that are kept for each size class."""


class StepCosts:
    """The shortest of the last steps of every size class."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._fastest: dict[int, float] = {}

    def record(self, num_rows: int, seconds: float) -> None:
        """Records the seconds that a step took."""
        size = _size_class(num_rows)
        kept = self._seconds.setdefault(size, deque(maxlen=_NUM_KEPT))
        kept.append(seconds)
        self._fastest[size] = min(kept)

    def at_most(self, num_rows: int) -> float:
        """Returns the seconds of such a step, or of a larger one if none was measured; infinite if
        there is none either."""
        size = _size_class(num_rows)
        costs = (cost for each, cost in self._fastest.items() if each >= size)
        return min(costs, default=math.inf)

    def at_least(self, num_rows: int) -> float:
        """Returns the seconds of such a step, or of a smaller one if none was measured; 0 if there
        is none either."""
        size = _size_class(num_rows)
        costs = (cost for each, cost in self._fastest.items() if each <= size)
        return max(costs, default=0.0)


def _size_class(num_rows: int) -> int:
    return max(0, num_rows - 1).bit_length()
