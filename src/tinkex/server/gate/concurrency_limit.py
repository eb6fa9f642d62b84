"""Adaptive limit on submissions in flight.

Every 0.1 s the fastest submission of the interval is compared with a target latency. If even the
fastest stays above the target for a second, the queue is not a passing burst and the limit shrinks;
while submissions are fast and the limit is reached, it grows. Runs on the event loop only.
"""

from __future__ import annotations

from collections import Counter

_INTERVAL_S = 0.1
_BURST_S = 1.0
_MIN_LIMIT = 64
_MAX_LIMIT = 4096


class ConcurrencyLimit:
    """The number of submissions that may be in flight; adapts to their latency.

    The caller passes the time.
    """

    def __init__(self, target_s: float, *, least: int = _MIN_LIMIT, most: int = _MAX_LIMIT) -> None:
        self._target_s = target_s
        self._least = least
        self._most = self.limit = most
        self._in_flight: Counter[str] = Counter()
        self._total = 0
        self._peak = 0
        self._fastest_s: float | None = None
        self._adjusted_at = 0.0
        self._slow_since: float | None = None

    def admits(self, owner: str) -> bool:
        """Whether a tenant's submission is accepted; a tenant with none in flight has priority."""
        if self._total < self.limit:
            return True
        return self._total < 2 * self.limit and not self._in_flight[owner]

    @property
    def in_flight(self) -> int:
        """The number of submissions in flight."""
        return self._total

    def enter(self, owner: str) -> None:
        """Counts a submission whose body has been received."""
        self._in_flight[owner] += 1
        self._total += 1
        self._peak = max(self._peak, self._total)

    def leave(self, owner: str, took_s: float, now: float) -> None:
        """Removes it: it was answered after `took_s` seconds."""
        self._total -= 1
        self._in_flight[owner] -= 1
        if not self._in_flight[owner]:
            del self._in_flight[owner]
        if self._fastest_s is None or took_s < self._fastest_s:
            self._fastest_s = took_s
        if now - self._adjusted_at >= _INTERVAL_S:
            self._adjust(self._fastest_s, now)
            self._peak, self._fastest_s, self._adjusted_at = self._total, None, now

    def _adjust(self, fastest_s: float, now: float) -> None:
        if fastest_s <= self._target_s:
            self._slow_since = None
            if self._peak >= self.limit:
                self.limit = min(self._most, self.limit + 1 + self.limit // 16)
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since >= _BURST_S:
            self.limit = max(self._least, int(0.8 * min(self.limit, self._peak)))
