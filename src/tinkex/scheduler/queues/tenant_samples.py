"""One tenant's waiting sampling requests, in the order they are given to an engine.

As in the engine (`prefill_order`), each has a due time: the work that came before it plus a
multiple of its own, up to a fixed amount. A short request passes longer ones that came shortly
before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tinkex.fair_queue import due_time

if TYPE_CHECKING:
    from tinkex.scheduler.queues.slot_samples import QueuedSample

Fits = Callable[["QueuedSample"], bool]
"""Whether a request may be taken now."""

_LOOK_AHEAD = 64
"""Requests that are looked at for one that fits: the lock is held meanwhile."""

_Place = tuple[int, int, str]
"""Due time or cost, order of arrival, request id."""


class TenantSamples:
    """Requests by due time. Not thread-safe: the sample queue's lock guards it."""

    def __init__(self) -> None:
        self._waiting: dict[str, QueuedSample] = {}
        self._places_of: dict[str, tuple[_Place, _Place]] = {}
        self._by_due: list[_Place] = []
        self._by_cost: list[_Place] = []
        self._arrived = 0  # cost of all that came
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[QueuedSample]:
        return (self._waiting[request_id] for _, _, request_id in self._by_due)

    def add(self, queued: QueuedSample, *, first: bool = False) -> None:
        """Adds a request by its due time, or before all others."""
        request_id, cost = queued.sample.request_id, queued.sample.cost
        self.remove(request_id)
        self._count += 1
        due, order = -1, -self._count
        if not first:
            due = due_time(self._arrived, cost)
            order = self._count
            self._arrived += cost
        places = (due, order, request_id), (cost, order, request_id)
        insort(self._by_due, places[0])
        insort(self._by_cost, places[1])
        self._waiting[request_id], self._places_of[request_id] = queued, places

    def get(self, request_id: str) -> QueuedSample | None:
        """The request, if it waits here."""
        return self._waiting.get(request_id)

    def first(self, fits: Fits | None = None) -> QueuedSample | None:
        """The next request that fits, among those that are next; without `fits`, any does."""
        if fits is None:
            return self._waiting[self._by_due[0][2]]
        return next((each for each in islice(self, _LOOK_AHEAD) if fits(each)), None)

    def shortest(self) -> QueuedSample:
        """The request that costs least."""
        return self._waiting[self._by_cost[0][2]]

    def remove(self, request_id: str) -> QueuedSample | None:
        """Removes and returns the request."""
        queued = self._waiting.pop(request_id, None)
        if queued is not None:
            by_due, by_cost = self._places_of.pop(request_id)
            del self._by_due[bisect_left(self._by_due, by_due)]
            del self._by_cost[bisect_left(self._by_cost, by_cost)]
        return queued
