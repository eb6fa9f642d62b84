"""A byte budget: so much may be under way at once, the rest waits its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """Lets work pass while its bytes fit; first come, first served.

    A single piece larger than the whole budget passes alone.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        """How many bytes are under way."""
        return self._used

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        """Takes `num_bytes` of the budget for the length of the block."""
        share = min(num_bytes, self._size)
        await self._take(share)
        try:
            yield
        finally:
            self._used -= share
            self._wake()

    async def _take(self, share: int) -> None:
        if not self._waiting and self._used + share <= self._size:
            self._used += share
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((share, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._used -= share
            self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting:
            share, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
                continue
            if self._used + share > self._size:
                return
            self._waiting.popleft()
            self._used += share
            turn.set_result(None)
