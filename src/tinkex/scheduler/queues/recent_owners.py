"""Tenants that sent work a moment ago and will probably send more. Pure; the time is passed in.

A tenant that waits for each of its results has nothing queued while the next batch is put together,
so the queues alone do not show that it would wait for the end of that batch.
"""

from __future__ import annotations

from itertools import islice

__all__ = ["RecentOwners"]

_RECENT_S = 10.0
"""For so long after its last request a tenant counts as one that will send more."""


class RecentOwners:
    """When each tenant last sent a request, of training or of sampling."""

    def __init__(self) -> None:
        self._sent_at: dict[str, float] = {}  # the newest request last

    def sent(self, owner: str, now: float) -> None:
        """Notes a request."""
        self._sent_at.pop(owner, None)
        self._sent_at[owner] = now
        while now - self._sent_at[oldest := next(iter(self._sent_at))] >= _RECENT_S:
            del self._sent_at[oldest]

    def has_others(self, owner: str, now: float) -> bool:
        """Whether any other tenant has sent a request a moment ago."""
        return any(each != owner for each in self._newest(now))

    def are_several(self, now: float) -> bool:
        """Whether more than one tenant has sent a request a moment ago."""
        return len(self._newest(now)) > 1

    def _newest(self, now: float) -> list[str]:
        """The two tenants that sent last, if that was a moment ago."""
        newest = islice(reversed(self._sent_at), 2)
        return [each for each in newest if now - self._sent_at[each] < _RECENT_S]
