"""The order of a model's requests.

The number is taken in the caller's thread, so two calls made one after the other keep their order
even if they are never awaited. Requests are sent in that order, each after the server has accepted
the one before.
"""

from __future__ import annotations

import asyncio
import os
import threading

from tinkex.errors import ClientClosedError


class SendSlot:
    """The right to send one request: given once the slot before it is released."""

    __slots__ = ("_before", "_done")

    def __init__(self, before: SendSlot | None) -> None:
        self._before = before
        self._done = asyncio.Event()

    async def wait(self) -> None:
        """Returns once the slot before is released."""
        if self._before is not None:
            await self._before._done.wait()
            self._before = None

    def release(self) -> None:
        """Lets the next slot send; only to be called on the loop."""
        self._done.set()


class Order:
    """The sequence numbers of one model, from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._last: SendSlot | None = None
        self._pid = os.getpid()

    def take(self, count: int = 1) -> tuple[int, SendSlot]:
        """The first of `count` numbers in a row, and the slot in which they are to be sent.

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
            slot = self._last = SendSlot(self._last)
        return first, slot
