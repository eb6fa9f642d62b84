"""Places in a model's order of requests.

The number is taken in the caller's thread, so two calls made one after the other keep their order
even if nobody awaits them; requests then leave in that order, each after the server has taken the
one before.
"""

from __future__ import annotations

import asyncio
import os
import threading

from tinkex.errors import ClientClosedError


class Turn:
    """A place in the queue of submits: open once the place before has been passed on."""

    __slots__ = ("_before", "_done")

    def __init__(self, before: Turn | None) -> None:
        self._before = before
        self._done = asyncio.Event()

    async def wait(self) -> None:
        """Returns once it is this place's turn."""
        if self._before is not None:
            await self._before._done.wait()
            self._before = None

    def pass_on(self) -> None:
        """Lets the next place have its turn; only to be called on the loop."""
        self._done.set()


class Order:
    """The sequence numbers of one model, from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._last: Turn | None = None
        self._pid = os.getpid()

    def take(self, count: int = 1) -> tuple[int, Turn]:
        """The first of `count` numbers in a row, and the turn in which they are to be sent.

        Raises:
            ClientClosedError: the model belongs to the process this one was forked from.
        """
        if os.getpid() != self._pid:
            raise ClientClosedError(
                "This TrainingClient was made before a fork; two processes cannot number the "
                "requests of one model.",
                hint="Create a TrainingClient in this process, for instance from a saved state.",
            )
        with self._lock:
            first = self._next
            self._next += count
            turn = self._last = Turn(self._last)
        return first, turn
