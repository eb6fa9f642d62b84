"""How long the busiest engine has computed: whether engines or the server hold work up.

One engine that computes all the time while others idle holds up what waits for it, so the mean over
all engines would say too little.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BusiestTime"]


class BusiestTime:
    """Adds up, from call to call, the time of the engine that computed longest since the last."""

    def __init__(self) -> None:
        self._before: Sequence[float] = ()
        self._total_s = 0.0

    def update(self, busy_s: Sequence[float]) -> float:
        """The total, from the seconds that each engine has computed so far; those of an engine
        that was replaced begin at 0 again."""
        if len(busy_s) == 1:
            return busy_s[0]
        if self._before:
            pairs = zip(self._before, busy_s, strict=True)
            self._total_s += max(0.0, *(after - before for before, after in pairs))
        self._before = busy_s
        return self._total_s
