"""Sampling requests: who waits, what the engine is working on, and how results come back.

The engine batches continuously; this feeds it, fairly between tenants, so that it always has
enough to fill its batches and never so much that a newcomer waits behind one tenant's thousands.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from tinkex.fairness import FairTurns
from tinkex.scheduler.suspects import Suspects
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest

_AT_ONCE = 64  # handed to the engine between two spells: each takes its time, and others wait


class Waiting(msgspec.Struct):
    """A sampling request, decoded if it came since the last start; how often the engine failed
    while it had the request."""

    sample: Sample
    request: SampleRequest | None = None
    failures: int = 0


class SampleBoard:
    """Requests that wait and requests that run. Thread-safe."""

    def __init__(self, *, max_running: int = 256) -> None:
        self._max_running = max_running
        self._waiting: dict[str, OrderedDict[str, Waiting]] = {}
        self._running: dict[str, Waiting] = {}
        self._suspects = Suspects()
        self._cancelled: list[str] = []
        self._turns = FairTurns()
        self._lock = threading.Lock()

    def add(self, waiting: Waiting, *, first: bool = False) -> None:
        """Queues a request, or puts one back at the front."""
        with self._lock:
            line = self._waiting.setdefault(waiting.sample.owner, OrderedDict())
            line[waiting.sample.request_id] = waiting
            if first:
                line.move_to_end(waiting.sample.request_id, last=False)

    def suspect(self, requests: list[Waiting]) -> None:
        """Has requests tried again apart from all others: one of them made the engine fail."""
        with self._lock:
            self._suspects.add(requests)

    def take(self) -> list[Waiting]:
        """What the engine should get now; it counts as running from here on."""
        taken: list[Waiting] = []
        with self._lock:
            if self._suspects:
                if not self._running:
                    self._running |= self._suspects.next_wave()
                    taken += self._running.values()
                return taken
            room = min(_AT_ONCE, self._max_running - len(self._running))
            while self._waiting and len(taken) < room:
                heads = {
                    owner: next(iter(line.values())).sample.cost
                    for owner, line in self._waiting.items()
                }
                self._turns.forget_idle(set(heads))
                owner = self._turns.pick(heads)
                request_id, waiting = self._waiting[owner].popitem(last=False)
                if not self._waiting[owner]:
                    del self._waiting[owner]
                self._running[request_id] = waiting
                taken.append(waiting)
        return taken

    def finish(self, request_id: str) -> Waiting | None:
        """The running request that just ended; None if it was cancelled meanwhile."""
        with self._lock:
            return self._running.pop(request_id, None)

    def cancel(self, request_id: str, owner: str) -> Waiting | None:
        """Takes the owner's request off the board, wherever it is."""
        with self._lock:
            line = self._waiting.get(owner, OrderedDict[str, Waiting]())
            found = line.pop(request_id, None)
            if found is not None and not line:
                del self._waiting[owner]
            running = self._running.get(request_id)
            found = found or self._suspects.remove(request_id, owner)
            if found is None and running is not None and running.sample.owner == owner:
                found = self._running.pop(request_id)
                self._cancelled.append(request_id)
            return found

    def drain_cancelled(self) -> list[str]:
        """Requests cancelled while they ran, since the last call; the engine is silent on them."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
            return cancelled

    def interrupt(self) -> list[Waiting]:
        """What was running when the engine died."""
        with self._lock:
            running = list(self._running.values())
            self._running.clear()
            return running

    def pending(self, owner: str) -> int:
        """How many of the owner's requests are not finished."""
        with self._lock:
            tried = [*self._running.values(), *self._suspects.values()]
            running = sum(1 for each in tried if each.sample.owner == owner)
            return running + len(self._waiting.get(owner, ()))

    def uses(self, sampling_session_id: str) -> bool:
        """Whether any unfinished request needs the sampling session."""
        with self._lock:
            return any(
                each.sample.sampling_session_id == sampling_session_id for each in self._all()
            )

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
            return len(self._running) + len(self._suspects) + waiting

    def _all(self) -> Iterator[Waiting]:
        yield from self._running.values()
        yield from self._suspects.values()
        for line in self._waiting.values():
            yield from line.values()
