"""Sampling requests that were in the engine when it failed: tried again apart from each other.

Nobody knows which of them is to blame. A few run one by one; of many, a share at a time, since
most deaths are nobody's fault and a machine that samples one by one is slow. Whoever was there
at a second failure runs alone, so that in the end only the one to blame fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, ValuesView
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinkex.scheduler.queues.sample_queue import QueuedSample

_WAVES = 16


class CrashQuarantine:
    """Requests in line for another try. Not thread-safe: the board's lock guards it."""

    def __init__(self) -> None:
        self._line: OrderedDict[str, QueuedSample] = OrderedDict()
        self._wave = 1

    def __len__(self) -> int:
        return len(self._line)

    def values(self) -> ValuesView[QueuedSample]:
        """Those in line."""
        return self._line.values()

    def add(self, requests: Iterable[QueuedSample]) -> None:
        """Puts the requests of one failure in line."""
        added = {each.sample.request_id: each for each in requests}
        share = -(-len(added) // _WAVES)
        self._wave = max(self._wave, share) if self._line else max(1, share)
        self._line.update(added)

    def next_wave(self) -> dict[str, QueuedSample]:
        """Those to run now, with nobody else in the engine; they leave the line."""
        first = next(iter(self._line.values()))
        size = self._wave if first.failures < 2 else 1
        taken: dict[str, QueuedSample] = {}
        while self._line and len(taken) < size:
            request_id, queued = next(iter(self._line.items()))
            if taken and queued.failures >= 2:
                break
            taken[request_id] = self._line.pop(request_id)
        return taken

    def remove(self, request_id: str, owner: str) -> QueuedSample | None:
        """The owner's request, out of the line."""
        found = self._line.get(request_id)
        if found is None or found.sample.owner != owner:
            return None
        return self._line.pop(request_id)
