"""The state of all slots, for slots that are idle.

Idle slots check all others several times a second, so they share one result for a short time. Pure;
the caller passes the time. The planner's lock guards it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinkex.scheduler.slot_load import BUSY_SHARE, SlotLoad

__all__ = ["SlotOverview"]

_VALID_S = 0.05


class SlotOverview:
    """Slots that need an action of others."""

    def __init__(self, loads: Sequence[SlotLoad]) -> None:
        self._loads = loads
        self._as_of = -math.inf
        self.without_engine: list[int] = []
        self.busy: list[int] = []

    def update(self, now: float) -> None:
        """Checks all slots, unless that was done a moment ago."""
        if 0.0 <= now - self._as_of < _VALID_S:
            return
        self._as_of = now
        loads = list(enumerate(self._loads))
        self.without_engine = [n for n, load in loads if load.starting_s() is not None]
        self.busy = [n for n, load in loads if load.busy(now) >= BUSY_SHARE]
