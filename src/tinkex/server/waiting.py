"""Long polls: requests that wait for a result and are woken when it is there.

Everything here runs on the event loop, except `publish`, which any thread may call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tinkex.store.results import Result


class Waiters:
    """Who waits for which result or sampling session."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: defaultdict[str, set[asyncio.Future[Result | None]]] = defaultdict(set)
        self._is_closed = False

    def publish(self, results: dict[str, Result], sessions: set[str]) -> None:
        """Wakes whoever waits for these results, or for anything of these sampling sessions."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._wake, results, sessions)

    @contextmanager
    def watch(self, key: str) -> Iterator[asyncio.Future[Result | None]]:
        """A future that is set at the next publication of the key.

        Begin to watch, then look into the store, then wait: no result can slip through.
        """
        future: asyncio.Future[Result | None] = self._loop.create_future()
        if self._is_closed:
            future.set_result(None)
        self._waiting[key].add(future)
        try:
            yield future
        finally:
            self._waiting[key].discard(future)
            if not self._waiting[key]:
                del self._waiting[key]

    def close(self) -> None:
        """Lets every waiting poll go with empty hands."""
        self._is_closed = True
        for futures in list(self._waiting.values()):
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def _wake(self, results: dict[str, Result], sessions: set[str]) -> None:
        for request_id, result in results.items():
            self._resolve(request_id, result)
        for session in sessions:
            self._resolve(session, None)

    def _resolve(self, key: str, result: Result | None) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(result)


async def wait_for(
    future: asyncio.Future[Result | None], timeout_s: float
) -> tuple[bool, Result | None]:
    """Whether the future was set in time, and to what."""
    done, _ = await asyncio.wait({future}, timeout=timeout_s)
    return (True, future.result()) if done else (False, None)
