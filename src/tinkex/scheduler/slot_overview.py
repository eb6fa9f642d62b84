"""What all slots look like to one that has nothing to do.

Idle slots look several times a second, each at all others, so they share what one of them saw a
moment ago. Pure; the caller passes the time. The planner's lock guards it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinkex.scheduler.slot_load import BUSY_SHARE, SlotLoad

__all__ = ["SlotOverview"]

_VALID_S = 0.05


class SlotOverview:
    """Slots that others may have to do something about."""

    def __init__(self, loads: Sequence[SlotLoad]) -> None:
        self._loads = loads
        self._as_of = -math.inf
        self.without_engine: list[int] = []
        self.busy: list[int] = []

    def update(self, now: float) -> None:
        """Looks at all slots, unless one did a moment ago."""
        if 0.0 <= now - self._as_of < _VALID_S:
            return
        self._as_of = now
        loads = list(enumerate(self._loads))
        self.without_engine = [n for n, load in loads if load.starting_s() is not None]
        self.busy = [n for n, load in loads if load.busy(now) >= BUSY_SHARE]
