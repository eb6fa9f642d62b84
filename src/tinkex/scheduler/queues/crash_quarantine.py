"""Sampling requests that were in an engine when it failed, retried apart from all others.

Any of them may be the cause. A few are retried one by one; many are retried in sixteenths, since
most failures are not caused by a request and single retries are slow. A request that was present at
a second failure is retried alone, so that only the one that causes the failure ends with an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, ValuesView
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinkex.scheduler.queues.slot_samples import QueuedSample

_WAVES = 16


class CrashQuarantine:
    """Requests that wait for a retry. Not thread-safe: the sample queue's lock guards it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, QueuedSample] = OrderedDict()
        self._wave = 1

    def __len__(self) -> int:
        return len(self._waiting)

    def values(self) -> ValuesView[QueuedSample]:
        """The requests that wait."""
        return self._waiting.values()

    def add(self, requests: Iterable[QueuedSample]) -> None:
        """Adds the requests of one failure."""
        added = {each.sample.request_id: each for each in requests}
        share = -(-len(added) // _WAVES)
        self._wave = max(self._wave, share) if self._waiting else max(1, share)
        self._waiting.update(added)

    def next_wave(self) -> dict[str, QueuedSample]:
        """Removes and returns the requests to run now, with no others in the engine."""
        first = next(iter(self._waiting.values()))
        size = self._wave if first.failures < 2 else 1
        taken: dict[str, QueuedSample] = {}
        while self._waiting and len(taken) < size:
            request_id, queued = next(iter(self._waiting.items()))
            if taken and queued.failures >= 2:
                break
            taken[request_id] = self._waiting.pop(request_id)
        return taken

    def remove(self, request_id: str, owner: str) -> QueuedSample | None:
        """Removes and returns the owner's request."""
        found = self._waiting.get(request_id)
        if found is None or found.sample.owner != owner:
            return None
        return self._waiting.pop(request_id)
