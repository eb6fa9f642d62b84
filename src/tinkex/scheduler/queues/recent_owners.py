"""Tenants that sent work a moment ago and will probably send more. Pure; the time is passed in.

A tenant that waits for each of its results has nothing queued while the next batch is put together,
so the queues alone do not show that it would wait for the end of that batch.
"""

from __future__ import annotations

__all__ = ["RecentOwners"]

_RECENT_S = 10.0
"""For so long after its last request a tenant counts as one that will send more."""


class RecentOwners:
    """When each tenant last sent a request, of training or of sampling."""

    def __init__(self) -> None:
        self._sent_at: dict[str, float] = {}

    def sent(self, owner: str, now: float) -> None:
        """Notes a request."""
        self._sent_at[owner] = now

    def has_others(self, owner: str, now: float) -> bool:
        """Whether any other tenant has sent a request a moment ago."""
        self._sent_at = {
            each: sent_at for each, sent_at in self._sent_at.items() if now - sent_at < _RECENT_S
        }
        return bool(self._sent_at.keys() - {owner})
