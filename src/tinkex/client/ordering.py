"""The order of a model's requests.

A place in the order, a slot, is taken in the caller's thread, so two calls made one after the other
keep their order even if they are never awaited. Requests are sent in that order, each after the
server has accepted the one before; the sequence numbers are given as they are sent, so that a slot
of which nothing comes leaves no hole.
"""

from __future__ import annotations

import asyncio
import os
import threading

from tinkex.errors import ClientClosedError


class SendSlot:
    """The right to send requests: given once the slot before it is released."""

    __slots__ = ("_before", "_done", "_order")

    def __init__(self, order: Order, before: SendSlot | None) -> None:
        self._order = order
        self._before = before
        self._done = asyncio.Event()

    async def wait(self) -> None:
        """Returns once the slot before is released."""
        if self._before is not None:
            await self._before._done.wait()
            self._before = None

    def numbers(self, count: int = 1) -> int:
        """The first of `count` sequence numbers in a row, once `wait` has returned."""
        return self._order._number(count)

    def release(self) -> None:
        """Lets the next slot send; only to be called on the loop."""
        self._done.set()


class Order:
    """The slots of one model, and its sequence numbers from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._last: SendSlot | None = None
        self._pid = os.getpid()

    @property
    def last_number(self) -> int:
        """The number given last, 0 if there was none; only to be read on the loop."""
        return self._next - 1

    def take(self) -> SendSlot:
        """The next slot.

        Raises:
            ClientClosedError: the model belongs to the process this one was forked from.
        """
        return self._take(1)[0]

    def take_two(self) -> tuple[SendSlot, SendSlot]:
        """The next two slots, with no other between them; see `take`."""
        first, second = self._take(2)
        return first, second

    def _take(self, count: int) -> list[SendSlot]:
        if os.getpid() != self._pid:
            raise ClientClosedError(
                "This TrainingClient was made before a fork; two processes cannot number the "
                "requests of one model.",
                hint="Create a TrainingClient in this process, for instance from a saved state.",
            )
        taken: list[SendSlot] = []
        with self._lock:
            for _ in range(count):
                self._last = SendSlot(self, self._last)
                taken.append(self._last)
        return taken

    def _number(self, count: int) -> int:
        """Only to be called on the loop, by the slot that may send."""
        first = self._next
        self._next += count
        return first
