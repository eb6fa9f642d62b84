"""Signals that stop a server: the first drains it, a second Ctrl-C ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tinkex.stop_signals import stop_signals

__all__ = ["stopped_by_signals"]

_ONE_PRESS_S = 0.2
"""Programs that pass Ctrl-C on make two signals of one press; later ones are another press."""

_ENDED = b"Ended at once. Unfinished work is in the log and runs at the next start.\n"


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at each signal to stop, in the main thread; elsewhere signals are not taken."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler(stop)
    before = {each: signal.signal(each, handler) for each in stop_signals()}
    try:
        yield
    finally:
        for each, earlier in before.items():
            signal.signal(each, earlier)


class _Handler:
    """Draining takes a bounded time, so further SIGTERMs change nothing."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._interrupted_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._end_at_second_press()
        self._stop()

    def _end_at_second_press(self) -> None:
        """Ends the process as `kill -9` would."""
        now = time.monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
        elif now - self._interrupted_at > _ONE_PRESS_S:
            with suppress(OSError):
                os.write(2, _ENDED)  # no logging here: a signal may come while its lock is held
            os._exit(128 + signal.SIGINT)  # the engine ends when its connection does
