"""Long polls: requests that wait for a result and are woken when it is there.

Requests of this run of the server are known here by their ids, and their results for a while, so
that most polls need not read the store. Everything runs on the event loop, except `publish`, which
any thread may call.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable

import msgspec

from tinkex.store.results import Found, Result


class _Known(msgspec.Struct):
    owner: str
    kind: str
    result: Result | None = None


class Waiters:
    """The polls that wait, by result or sampling session."""

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
        """Wakes the polls that wait for these results, or for any of these sampling sessions."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._wake, results, sessions)

    def watch(self, key: str) -> Watch:
        """A future, while it is watched, that is set at the next publication of the key.

        Begin to watch, then look into the store, then wait: no result can slip through.
        """
        future: asyncio.Future[Result | None] = self._loop.create_future()
        if self._is_closed:
            future.set_result(None)
        return Watch(self._waiting, key, future)

    def close(self) -> None:
        """Ends every waiting poll without a result."""
        self._is_closed = True
        for futures in list(self._waiting.values()):
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def _wake(self, results: dict[str, Result], sessions: set[str]) -> None:
        for request_id in self._fewest_first(results):
            self._remember(request_id, results[request_id])
            self._resolve(request_id, results[request_id])
        for session in sessions:
            self._resolve(session, None)

    def _fewest_first(self, request_ids: Iterable[str]) -> list[str]:
        """In the order to answer in: a tenant's one result does not wait behind another's many."""
        owner_of = {each: known.owner for each in request_ids if (known := self._known.get(each))}
        num_of = Counter(owner_of.values())
        return sorted(request_ids, key=lambda each: num_of[owner_of.get(each, "")])

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


class Watch:
    """One poll's wait for a key; inside it, the future is among those that are set."""

    __slots__ = ("_future", "_key", "_waiting")

    def __init__(
        self,
        waiting: defaultdict[str, set[asyncio.Future[Result | None]]],
        key: str,
        future: asyncio.Future[Result | None],
    ) -> None:
        self._waiting = waiting
        self._key = key
        self._future = future

    def __enter__(self) -> asyncio.Future[Result | None]:
        self._waiting[self._key].add(self._future)
        return self._future

    def __exit__(self, *_: object) -> None:
        others = self._waiting[self._key]
        others.discard(self._future)
        if not others:
            del self._waiting[self._key]


async def wait_for(future: asyncio.Future[Result | None], timeout_s: float) -> Result | None:
    """What the future was set to in time; None if it was not, and the future is spent then."""
    timer = asyncio.get_running_loop().call_later(timeout_s, _give_up, future)
    try:
        return await future
    finally:
        timer.cancel()


def _give_up(future: asyncio.Future[Result | None]) -> None:
    if not future.done():
        future.set_result(None)
