"""A steady clock for ages, which does not follow jumps of the wall clock.

A jump of the wall clock must not end a retention period, a session or a token. Ages are therefore
measured by the server's own clock. It starts with the wall clock, or with the last value of an
earlier run if that is later, counts seconds as they pass, and never goes back. A jump while the
server was down cannot be detected and counts as time that passed.

Dates that users set or see, such as the expiry of a checkpoint, are dates of the wall clock. By
`not_before` a date is reached only when both clocks have reached it.
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
    """Returns seconds since boot, including suspended time where the system counts it."""
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
        """Returns the present time, in seconds since the epoch."""
        return self._seconds_up() + self._lead

    def advance_to(self, time_s: float) -> None:
        """Advances the clock to this time; never sets it back."""
        with self._lock:
            self._lead = max(self._lead, time_s - self._seconds_up())


_clock = SteadyClock()


def steady_now() -> float:
    """Returns the time by which ages are measured."""
    return _clock.now()


def not_before() -> float:
    """Returns the latest date that both clocks have reached: the time of the slower one."""
    return min(time.time(), _clock.now())


def resume(conn: Connection) -> None:
    """Continues the clock from where an earlier run left it."""
    kept = conn.execute(select(settings.c.value).where(settings.c.name == _NAME)).scalar()
    if kept is not None:
        _clock.advance_to(struct.unpack("<d", kept)[0])


def keep(conn: Connection) -> None:
    """Stores the time for the next run. Must run as a write."""
    value = struct.pack("<d", _clock.now())
    done = conn.execute(update(settings).where(settings.c.name == _NAME).values(value=value))
    if not done.rowcount:
        conn.execute(settings.insert().values(name=_NAME, value=value))
