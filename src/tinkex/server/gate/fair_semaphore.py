"""A semaphore for request handling whose waiting tenants are served in turn.

Without it, five hundred requests of one tenant that arrive in one burst would all be handled before
another tenant's next request. A slot is held while a request is worked on: not while its body
arrives, while a poll waits, or during a long operation. Runs on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque


class FairSemaphore:
    """`width` slots in total, at most `most` of them for one tenant."""

    def __init__(self, width: int = 256, most: int = 16) -> None:
        self._width = width
        self._most = most
        self._held: Counter[str] = Counter()
        self._total = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: str) -> None:
        """Returns once the owner holds a slot."""
        if self._is_free(owner) and owner not in self._waiting:
            self._hold(owner)
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():
                self.release(owner)  # it was granted at the moment of the cancellation
            raise

    def release(self, owner: str) -> None:
        """Frees a slot of the owner and grants it to the next waiter."""
        self._total -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while self._total < self._width and (following := self._next()) is not None:
            following.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The slot to grant now, already held for its owner, who moves to the end of the queue."""
        for owner in list(self._waiting):
            queue = self._waiting[owner]
            while queue and queue[0].cancelled():
                queue.popleft()
            slot = queue.popleft() if queue and self._is_free(owner) else None
            if not queue:
                del self._waiting[owner]
            elif slot is not None:
                self._waiting.move_to_end(owner)
            if slot is not None:
                self._hold(owner)
                return slot
        return None

    def _is_free(self, owner: str) -> bool:
        return self._total < self._width and self._held[owner] < self._most

    def _hold(self, owner: str) -> None:
        self._total += 1
        self._held[owner] += 1
