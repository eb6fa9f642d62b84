"""Time for ages: it goes on evenly, whatever happens to the wall clock.

The wall clock can jump; a retention of a day, a session's silence or a token's life must not. Ages
are therefore measured on a clock of the server's own. It starts with the wall clock, or where an
earlier run left it if that is later, and then counts seconds as they pass. It never goes back. A
server that starts has nothing but the wall clock to believe, so a jump made while it was down
counts as time that passed.

Dates that people gave or are shown, such as the end of a checkpoint, are dates of the wall clock;
`not_before` is how they are judged: a date has come only when both clocks say so.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable

from sqlalchemy import Connection, select, update

from tinkex.store.schema import settings

__all__ = ["SteadyClock", "keep", "not_before", "resume", "seconds_up", "steady_now"]

_NAME = "clock"


def seconds_up() -> float:
    """Seconds that passed, those asleep included where the system counts them."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class SteadyClock:
    """Seconds since the epoch by a clock that is set once and then only counts."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        seconds_up: Callable[[], float] = seconds_up,
    ) -> None:
        self._seconds_up = seconds_up
        self._lock = threading.Lock()
        self._lead = wall() - seconds_up()

    def now(self) -> float:
        """The time."""
        return self._seconds_up() + self._lead

    def advance_to(self, time_s: float) -> None:
        """Goes forward to this time; never back."""
        with self._lock:
            self._lead = max(self._lead, time_s - self._seconds_up())


_clock = SteadyClock()


def steady_now() -> float:
    """The time to measure ages with."""
    return _clock.now()


def not_before() -> float:
    """The latest date that has surely come: what the slower of the two clocks shows."""
    return min(time.time(), _clock.now())


def resume(conn: Connection) -> None:
    """Sets the clock on from where an earlier run left it."""
    kept = conn.execute(select(settings.c.value).where(settings.c.name == _NAME)).scalar()
    if kept is not None:
        _clock.advance_to(struct.unpack("<d", kept)[0])


def keep(conn: Connection) -> None:
    """Notes the time for the next run. Must run as a write."""
    value = struct.pack("<d", _clock.now())
    done = conn.execute(update(settings).where(settings.c.name == _NAME).values(value=value))
    if not done.rowcount:
        conn.execute(settings.insert().values(name=_NAME, value=value))
