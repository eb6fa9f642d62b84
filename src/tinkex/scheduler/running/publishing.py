"""Publishes results and counts them."""

from __future__ import annotations

import threading

from tinkex.scheduler.running.outcomes import Publish
from tinkex.store.results import Result

__all__ = ["CountedPublish"]


class CountedPublish:
    """A `Publish` that counts the results that passed. Thread-safe."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._lock = threading.Lock()
        self.num_finished = 0

    def __call__(self, results: dict[str, Result], sessions: set[str]) -> None:
        with self._lock:
            self.num_finished += len(results)
        self._publish(results, sessions)
