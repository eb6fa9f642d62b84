"""A lock around an engine's computation that measures how long the engine is busy."""

from __future__ import annotations

import threading
import time
from types import TracebackType

__all__ = ["BusyLock"]


class BusyLock:
    """A re-entrant lock that counts the seconds for which it is held."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0  # how often the holding thread has entered
        # Replaced as a whole, so that a reader without the lock sees both from one moment.
        self._total_s_and_start: tuple[float, float | None] = (0.0, None)

    @property
    def busy_seconds(self) -> float:
        """Seconds for which the lock was held so far, the present hold included."""
        total_s, start = self._total_s_and_start
        return total_s if start is None else total_s + time.monotonic() - start

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._total_s_and_start = (self.busy_seconds, time.monotonic())

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._total_s_and_start = (self.busy_seconds, None)
        self._lock.release()
