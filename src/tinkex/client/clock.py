"""Time and randomness, in one replaceable object.

All waits and random numbers of the client come from a Clock, so that tests need no real time.
"""

from __future__ import annotations

import asyncio
import random
import time


class Clock:
    """The real thing: wall clock, monotonic clock, sleep and randomness."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits without blocking the loop."""
        await asyncio.sleep(seconds)

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()  # noqa: S311 - jitter, not secrets
