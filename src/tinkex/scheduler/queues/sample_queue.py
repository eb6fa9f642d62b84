"""Sampling requests: who waits, what the engine is working on, and how results come back.

The engine batches continuously and shares its batch between the requests it has; this feeds it,
fairly between tenants, so that it always has enough to fill its batches and never holds thousands.
A newcomer does not wait for places that others have: a tenant gets an even share of them, and short
requests of a tenant a few more, beyond the limit if it must be. With n tenants the engine has at
most limit * (1 + 1/2 + ... + 1/n) requests that way, and a quarter of the limit for each tenant's
short ones. A limit of one is kept strictly: each request runs alone.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from tinkex.fair_queue import FairTurns
from tinkex.scheduler.queues.crash_quarantine import CrashQuarantine
from tinkex.scheduler.queues.tenant_samples import TenantSamples
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest

_AT_ONCE = 64  # handed to the engine between two spells: each takes its time, and others wait
_SHORT = 16  # a request is short if it costs so many times less than its tenant's running ones


class QueuedSample(msgspec.Struct):
    """A sampling request, decoded if it came since the last start; how often the engine failed,
    and how often it hung, while it had the request."""

    sample: Sample
    request: SampleRequest | None = None
    failures: int = 0
    hangs: int = 0


class SampleQueue:
    """Requests that wait and requests that run. Thread-safe."""

    def __init__(self, *, max_running: int = 256) -> None:
        self._max_running = max_running
        self._waiting: dict[str, TenantSamples] = {}
        self._running: dict[str, QueuedSample] = {}
        self._quarantine = CrashQuarantine()
        self._cancelled: list[str] = []
        self._turns = FairTurns()
        self._lock = threading.Lock()

    def add(self, queued: QueuedSample, *, first: bool = False) -> None:
        """Queues a request, or puts one back at the front."""
        with self._lock:
            line = self._waiting.setdefault(queued.sample.owner, TenantSamples())
            line.add(queued, first=first)

    def quarantine(self, requests: list[QueuedSample]) -> None:
        """Has requests tried again apart from all others: one of them made the engine fail."""
        with self._lock:
            self._quarantine.add(requests)

    def take(self) -> list[QueuedSample]:
        """What the engine should get now; it counts as running from here on."""
        taken: list[QueuedSample] = []
        with self._lock:
            if self._quarantine:
                if not self._running:
                    self._running |= self._quarantine.next_wave()
                    taken += self._running.values()
                return taken
            self._turns.update(self._waiting)
            places = _Places(self._running.values(), self._waiting, self._max_running)
            while self._waiting and len(taken) < _AT_ONCE:
                next_of = places.next_of_tenants(self._waiting)
                if not next_of:
                    break
                costs = {owner: queued.sample.cost for owner, queued in next_of.items()}
                owner = self._turns.pick(costs)
                queued = next_of[owner]
                self._waiting[owner].remove(queued.sample.request_id)
                if not self._waiting[owner]:
                    del self._waiting[owner]
                self._running[queued.sample.request_id] = queued
                places.add(queued)
                taken.append(queued)
        return taken

    def finish(self, request_id: str) -> QueuedSample | None:
        """The running request that just ended; None if it was cancelled meanwhile."""
        with self._lock:
            return self._running.pop(request_id, None)

    def cancel(self, request_id: str, owner: str) -> QueuedSample | None:
        """Takes the owner's request off the board, wherever it is."""
        with self._lock:
            line = self._waiting.get(owner)
            found = None if line is None else line.remove(request_id)
            if found is not None and not line:
                del self._waiting[owner]
            running = self._running.get(request_id)
            found = found or self._quarantine.remove(request_id, owner)
            if found is None and running is not None and running.sample.owner == owner:
                found = self._running.pop(request_id)
                self._cancelled.append(request_id)
            return found

    def drain_cancelled(self) -> list[str]:
        """Requests cancelled while they ran, since the last call; the engine is silent on them."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
            return cancelled

    def interrupt(self) -> list[QueuedSample]:
        """What was running when the engine died."""
        with self._lock:
            running = list(self._running.values())
            self._running.clear()
            return running

    def pending(self, owner: str) -> int:
        """How many of the owner's requests are not finished."""
        with self._lock:
            tried = [*self._running.values(), *self._quarantine.values()]
            running = sum(1 for each in tried if each.sample.owner == owner)
            return running + len(self._waiting.get(owner, ()))

    def uses(self, sampling_session_id: str) -> bool:
        """Whether any unfinished request needs the sampling session."""
        with self._lock:
            return any(
                each.sample.sampling_session_id == sampling_session_id for each in self._all()
            )

    def sampling_sessions(self) -> set[str]:
        """The sampling sessions that have unfinished requests."""
        with self._lock:
            return {each.sample.sampling_session_id for each in self._all()}

    def older_than(self, before: float, sampling_session_ids: set[str]) -> list[Sample]:
        """Unfinished requests of these sampling sessions that came before this time."""
        with self._lock:
            return [
                each.sample
                for each in self._all()
                if each.sample.sampling_session_id in sampling_session_ids
                and each.sample.created_at < before
            ]

    def sampling_session_of(self, owner: str, request_id: str) -> str | None:
        """The sampling session of the owner's request, if that waits or runs."""
        with self._lock:
            line = self._waiting.get(owner)
            found = self._running.get(request_id) or (line.get(request_id) if line else None)
            if found is None or found.sample.owner != owner:
                return None
            return found.sample.sampling_session_id

    def is_waiting(self, owner: str, request_id: str) -> bool:
        """Whether the owner's request has not been given to the engine yet."""
        with self._lock:
            return request_id in self._waiting.get(owner, ())

    def has(self, request_id: str) -> bool:
        """Whether the request is not finished."""
        with self._lock:
            return any(each.sample.request_id == request_id for each in self._all())

    def total(self) -> int:
        """How many requests are not finished."""
        with self._lock:
            waiting = sum(len(line) for line in self._waiting.values())
            return len(self._running) + len(self._quarantine) + waiting

    def _all(self) -> Iterator[QueuedSample]:
        yield from self._running.values()
        yield from self._quarantine.values()
        for line in self._waiting.values():
            yield from line


class _Places:
    """Which tenants may have a place, by what they have running."""

    def __init__(
        self, running: Collection[QueuedSample], waiting: Iterable[str], limit: int
    ) -> None:
        self._count: Counter[str] = Counter()
        self._cost: Counter[str] = Counter()
        self._num_taken = self._total_cost = 0
        self._limit = limit
        # Where places come free between two calls, tenants get them in turn by cost.
        self._is_stuck = len(running) >= limit > 1
        for each in running:
            self.add(each)
        self._num_owners = len(self._count.keys() | set(waiting))

    def add(self, queued: QueuedSample) -> None:
        """Counts a request that has a place."""
        owner, cost = queued.sample.owner, queued.sample.cost
        self._count[owner] += 1
        self._cost[owner] += cost
        self._num_taken += 1
        self._total_cost += cost

    def next_of_tenants(self, lines: Mapping[str, TenantSamples]) -> dict[str, QueuedSample]:
        """The next request of each tenant that may have a place."""
        if self._num_taken < self._limit:
            return {owner: line.head() for owner, line in lines.items()}
        if not self._is_stuck:
            return {}
        found = {owner: self._next_of(owner, line) for owner, line in lines.items()}
        return {owner: queued for owner, queued in found.items() if queued is not None}

    def _next_of(self, owner: str, line: TenantSamples) -> QueuedSample | None:
        """The tenant's request to run: the next one if the tenant has less than its share, by
        requests and by cost, else its shortest if that is far shorter than those it has running."""
        count, cost = self._count[owner], self._cost[owner]
        has_less = cost * self._num_owners <= self._total_cost
        if count < max(1, self._limit // self._num_owners) and has_less:
            return line.head()
        shortest = line.shortest()
        is_short = shortest.sample.cost * _SHORT * count <= cost
        return shortest if is_short and count < self._limit + self._limit // 4 else None
