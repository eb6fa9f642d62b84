"""Turns at the event loop: how many requests are worked on at once, and whose is next.

Without them a tenant whose five hundred requests come in one burst puts every other one's next
step behind all of its own. So only some are worked on at a time, and of those that wait the
tenants are served in turn. A turn is not held while a body comes in, while a poll waits, or while
something takes long. Runs on the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque


class Turns:
    """Turns for all together, and how many of them one tenant may have at once."""

    def __init__(self, width: int = 256, most: int = 16) -> None:
        self._width = width
        self._most = most
        self._held: Counter[str] = Counter()
        self._total = 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: str) -> None:
        """Returns when it is the owner's turn."""
        if self._is_free(owner) and owner not in self._lines:
            self._hold(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give(owner)  # it came in the moment nobody wanted it any more
            raise

    def give(self, owner: str) -> None:
        """Ends a turn; whoever is next begins."""
        self._total -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while self._total < self._width and (following := self._next()) is not None:
            following.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The turn to begin now, held for its owner, who goes to the end of the line."""
        for owner in list(self._lines):
            line = self._lines[owner]
            while line and line[0].cancelled():  # whoever asked has gone away
                line.popleft()
            turn = line.popleft() if line and self._is_free(owner) else None
            if not line:
                del self._lines[owner]
            elif turn is not None:
                self._lines.move_to_end(owner)
            if turn is not None:
                self._hold(owner)
                return turn
        return None

    def _is_free(self, owner: str) -> bool:
        return self._total < self._width and self._held[owner] < self._most

    def _hold(self, owner: str) -> None:
        self._total += 1
        self._held[owner] += 1
