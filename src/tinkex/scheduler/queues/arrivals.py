"""Requests that are being received: meanwhile missing numbers of their models are not skipped.

A request counts from the moment its body names the model until it is answered. Only requests of the
model's owner count, so no tenant delays another's order.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager

from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import Planner

__all__ = ["Arrival", "Arrivals"]


class Arrivals:
    """How many requests of each model are being received. `lock` guards the planner."""

    def __init__(self, planner: Planner, lock: AbstractContextManager[None]) -> None:
        self._planner = planner
        self._lock = lock
        self._open: Counter[tuple[str, str]] = Counter()  # by owner and model

    def begin(self, owner: str, model_id: str) -> None:
        """Counts a request."""
        with self._lock:
            self._open[owner, model_id] += 1
            queue = self._planner.queue(model_id)
            if queue is not None:
                self.apply_to(queue)

    def end(self, owner: str, model_id: str) -> None:
        """Stops counting a request."""
        with self._lock:
            self._open[owner, model_id] -= 1
            if self._open[owner, model_id]:
                return
            del self._open[owner, model_id]
            queue = self._planner.queue(model_id)
            if queue is not None and queue.owner == owner:
                queue.go_on(time.monotonic())

    def apply_to(self, queue: ModelQueue) -> None:
        """Stops the queue's clock if a request of its owner is being received. Called with the lock
        held, also for a queue that was opened meanwhile."""
        if (queue.owner, queue.model_id) in self._open:
            queue.stop_clock(time.monotonic())


class Arrival:
    """One request of an owner."""

    __slots__ = ("_arrivals", "_model_id", "_owner")

    def __init__(self, arrivals: Arrivals, owner: str) -> None:
        self._arrivals = arrivals
        self._owner = owner
        self._model_id: str | None = None

    def begin(self, model_id: str) -> None:
        """The body names this model, and its rest is still to come."""
        if self._model_id is None:
            self._model_id = model_id
            self._arrivals.begin(self._owner, model_id)

    def end(self) -> None:
        """The request was answered."""
        if self._model_id is not None:
            self._arrivals.end(self._owner, self._model_id)
            self._model_id = None
