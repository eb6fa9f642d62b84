"""Rate limit for submissions while the server, not the engine, is the bottleneck.

When much work waits and the engine is idle more than half of the time, the server itself cannot
keep up; accepting more would leave no time to process any. Then only as many submissions are
accepted as were finished, for at least a second after the queue was last too long, plus some while
the queue is short so that it never runs empty. Work that waits for a busy engine is no overload.
Runs on the event loop only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tinkex.scheduler.scheduler import Progress

_INTERVAL_S = 0.1
_BURST_S = 1.0
_MANY_WAITING = 256
_TARGET_WAITING = 128
_BUSY_ENGINE = 0.5
"""Share of time above which the engine, not the server, is the bottleneck."""


class RateLimit:
    """The number of submissions accepted per 0.1 s, shared between the tenants that send any."""

    def __init__(
        self, progress: Callable[[], Progress], in_flight: Callable[[], int] = lambda: 0
    ) -> None:
        self._progress = progress
        self._in_flight = in_flight  # accepted, but not yet counted in the progress
        self._started_at = 0.0
        self._previous: Progress | None = None
        self._allowed: int | None = None
        self._rate = 0.0
        self._engine_share = 0.0
        self._overloaded_at = -_BURST_S
        self._count = 0
        self._sent: Counter[str] = Counter()
        self._previous_senders: frozenset[str] = frozenset()

    def admits(self, owner: str, now: float) -> bool:
        """Whether a tenant's submission is accepted now; a refused one counts as sent, too."""
        if now - self._started_at >= _INTERVAL_S:
            self._start_interval(now)
        is_within = self._allowed is None or self._is_within(self._allowed, owner)
        self._sent[owner] += 1
        self._count += is_within
        return is_within

    def _is_within(self, allowed: int, owner: str) -> bool:
        share = max(1, allowed // max(1, len(self._previous_senders)))
        # A tenant that sent nothing in the last interval has no share yet; leave capacity for it.
        most = allowed if owner in self._previous_senders else 2 * allowed
        return self._count < most and self._sent[owner] < share

    def _start_interval(self, now: float) -> None:
        """Starts a new interval and sets its limit."""
        progress, passed_s = self._progress(), now - self._started_at
        before, self._previous, self._started_at = self._previous, progress, now
        over = max(0, self._count - self._allowed) if self._allowed is not None else 0
        self._previous_senders, self._count = frozenset(self._sent), 0
        self._sent.clear()
        if before is None or passed_s > 10 * _INTERVAL_S:
            self._allowed = None
            return
        finished = (progress.num_finished - before.num_finished) / passed_s
        weight = min(1.0, passed_s / _BURST_S)
        self._rate += weight * (finished - self._rate)
        worked = max(0.0, progress.busy_seconds - before.busy_seconds) / passed_s
        self._engine_share += weight * (worked - self._engine_share)
        waiting = progress.num_ready + self._in_flight()
        if self._engine_share >= _BUSY_ENGINE:
            self._overloaded_at = -_BURST_S
        elif waiting > _MANY_WAITING:
            self._overloaded_at = now
        self._allowed = None
        if now - self._overloaded_at < _BURST_S:
            done = self._rate * min(passed_s, 3 * _INTERVAL_S)
            missing = max(0, _TARGET_WAITING - waiting)  # so that the queue never runs empty
            self._allowed = max(1, round(done + missing / 2) - over)
