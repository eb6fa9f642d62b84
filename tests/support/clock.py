"""Time that passes only when it is told to.

    clock = FakeClock()                 # sleeps end when a test calls clock.advance(s)
    clock = FakeClock(skip_up_to=60)    # sleeps of up to a minute cost nothing: time jumps

A test of timers wants the first, a test of retries the second. Every sleep asked for is kept in
`sleeps`. Randomness always answers 1.0: full delays, no jitter.
"""

from __future__ import annotations

import asyncio
import threading
import time

from tinkex.client.clock import Clock

EPOCH = 1_800_000_000.0


class FakeClock(Clock):
    """A clock for a Runtime; may be read and advanced from any thread."""

    def __init__(self, *, skip_up_to: float = 0.0) -> None:
        self.sleeps: list[float] = []
        self._skip_up_to = skip_up_to
        self._now = 1000.0
        self._lock = threading.Lock()
        self._sleepers: list[tuple[float, asyncio.AbstractEventLoop, asyncio.Event]] = []

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return EPOCH + self._now

    def random(self) -> float:
        return 1.0

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if seconds <= self._skip_up_to:
            await asyncio.sleep(0)
            self.advance(max(seconds, 0))
            return
        event = asyncio.Event()
        with self._lock:
            entry = (self._now + seconds, asyncio.get_running_loop(), event)
            self._sleepers.append(entry)
        try:
            await event.wait()
        finally:
            with self._lock:
                if entry in self._sleepers:
                    self._sleepers.remove(entry)

    def advance(self, seconds: float) -> None:
        """Let time pass and wake the tasks that have slept long enough."""
        with self._lock:
            self._now += seconds
            due = [entry for entry in self._sleepers if entry[0] <= self._now]
            self._sleepers = [entry for entry in self._sleepers if entry[0] > self._now]
        for _, loop, event in due:
            loop.call_soon_threadsafe(event.set)

    @property
    def sleeping(self) -> list[float]:
        """How much longer each sleeper has to sleep."""
        with self._lock:
            return sorted(entry[0] - self._now for entry in self._sleepers)

    def wait_for_sleepers(self, count: int = 1, timeout_s: float = 10) -> None:
        """Return once so many are asleep (real time; a test fails if they never are)."""
        deadline = time.monotonic() + timeout_s
        while len(self.sleeping) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"no task went to sleep; sleeping: {self.sleeping}")
            time.sleep(0.001)
