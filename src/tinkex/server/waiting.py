"""Long polls: requests that wait for a result and are woken when it is there.

Requests of this run of the server are known here by their ids, and their results for a while, so
that most polls need not ask the store. Everything runs on the event loop, except `publish`, which
any thread may call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tinkex.store.results import Found, Result


class _Known(msgspec.Struct):
    owner: str
    kind: str
    result: Result | None = None


class Waiters:
    """Who waits for which result or sampling session."""

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._known: dict[str, _Known] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # finished ones and their sizes
        self._kept_bytes = 0
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: defaultdict[str, set[asyncio.Future[Result | None]]] = defaultdict(set)
        self._is_closed = False

    def expect(self, request_id: str, owner: str, kind: str) -> None:
        """Notes a request before it is scheduled."""
        self._known[request_id] = _Known(owner, kind)

    def find(self, owner: str, request_id: str) -> Found | None:
        """What is known here of the owner's request; None sends the caller to the store."""
        known = self._known.get(request_id)
        if known is None or known.owner != owner:
            return None
        return Found(kind=known.kind, is_finished=known.result is not None, result=known.result)

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
            self._remember(request_id, result)
            self._resolve(request_id, result)
        for session in sessions:
            self._resolve(session, None)

    def _remember(self, request_id: str, result: Result) -> None:
        known = self._known.get(request_id)
        if known is None or known.result is not None:
            return
        known.result = result
        self._kept[request_id] = len(result.body) + 512
        self._kept_bytes += self._kept[request_id]
        while self._kept_bytes > self._max_bytes:
            oldest, size = self._kept.popitem(last=False)
            self._kept_bytes -= size
            del self._known[oldest]

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
