"""Liveness of an engine's process: pings, and for how long they went unanswered.

A ping is answered by the worker's reading thread, so a long computation does not delay it. What
makes a worker silent is a stopped process, a cut connection, or code that never releases the
interpreter's lock. A call that never ends in a process that answers pings is not noticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["HANG_S", "PING_S", "Pinger", "Silence"]

PING_S = 5.0
HANG_S = 30.0
"""Seconds of silence after which a worker counts as hung."""


class Silence:
    """Measures for how long pings have gone unanswered. Pure: the caller reads the clock.

    Only time in which this process itself ran is counted: after a pause of its own (the machine
    was suspended, or the whole process group stopped) the other side gets a fresh interval.
    """

    def __init__(self, ping_s: float, now: float) -> None:
        self._longest_pause_s = 2 * ping_s
        self._looked_at = now
        self._pinged_at = now  # the oldest ping that is not answered

    def look(self, now: float, heard_at: float) -> float:
        """Returns seconds since the oldest unanswered ping; a new one is sent right after."""
        was_paused = now - self._looked_at > self._longest_pause_s
        self._looked_at = now
        if was_paused or heard_at >= self._pinged_at:
            self._pinged_at = now
        return now - self._pinged_at


class Pinger:
    """A thread that pings every `ping_s` seconds, until the other side is silent for too long.

    `ping` must not block. `heard_at` is when anything came from the other side, `limit_s` how long
    it may be silent at this moment. `on_hang` is called once, with the seconds of silence.
    """

    def __init__(
        self,
        *,
        ping_s: float,
        limit_s: Callable[[], float],
        ping: Callable[[], None],
        heard_at: Callable[[], float],
        on_hang: Callable[[float], None],
    ) -> None:
        self._ping_s = ping_s
        self._limit_s = limit_s
        self._ping = ping
        self._heard_at = heard_at
        self._on_hang = on_hang
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine-pings")
        self.silent_s = 0.0

    def start(self) -> None:
        """Starts the thread, which sends the first ping."""
        self._thread.start()

    def stop(self) -> None:
        """Stops sending pings."""
        self._stopping.set()

    def _run(self) -> None:
        silence = Silence(self._ping_s, time.monotonic())
        self._ping()
        while not self._stopping.wait(self._ping_s):
            self.silent_s = silence.look(time.monotonic(), self._heard_at())
            if self.silent_s >= self._limit_s():
                self._on_hang(self.silent_s)
                return
            self._ping()
