"""HTTP connection pools, one per purpose, so that many requests of one kind never block another.

Polls are held open by the server for half a minute each: sharing connections with them would make
a heartbeat or a submit wait behind them, and thousands of samples in flight would make training
wait if their polls shared connections. Knows aiohttp; nothing else in the client does but
`transport`.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

PoolName = Literal["session", "train", "sample", "poll", "sample_poll", "rest", "telemetry"]

_LIMITS: dict[PoolName, int] = {
    "session": 64,
    "train": 32,
    "sample": 128,
    "poll": 256,
    "sample_poll": 2000,
    "rest": 32,
    "telemetry": 2,
}
_FILES_LEFT_TO_OTHERS = 600
_KEEPALIVE_S = 30.0


class Pools:
    """The pools of one runtime; each is opened when first used."""

    def __init__(self) -> None:
        self._open: dict[PoolName, aiohttp.ClientSession] = {}

    def get(self, name: PoolName) -> aiohttp.ClientSession:
        """The pool for a purpose; only to be called on the loop."""
        if name not in self._open:
            self._open[name] = _open_pool(name)
        return self._open[name]

    async def close(self) -> None:
        """Closes every connection."""
        pools, self._open = list(self._open.values()), {}
        for pool in pools:
            await pool.close()

    def abandon(self) -> None:
        """Drops every connection without closing it: in a fork they are the parent's.

        Closing them would remove the parent's sockets from its event loop, which is shared.
        """
        for pool in self._open.values():
            if pool.connector is not None:
                pool.connector._closed = True


def _open_pool(name: PoolName) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=_connection_limit(name), keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=60
    )
    handler = functools.partial(_Handler, loop=connector._loop)
    connector._factory = cast("functools.partial[ResponseHandler]", handler)
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
        raise_for_status=False,
        skip_auto_headers=("User-Agent",),
    )
    # It would send a GET or DELETE again by itself after a kept connection broke, without our count
    # of retries: the server takes that for a second deletion and answers 404.
    session._retry_connection = False
    return session


class _Handler(ResponseHandler):
    """Limits silence after an interim answer too.

    aiohttp stops its `sock_read` timer when a 1xx answer ends, so a peer that says `100 Continue`
    and then nothing would be waited for until the total timeout.
    """

    async def read(self) -> Any:
        message, payload = await super().read()
        if 100 <= message.code < 200 and not len(self):
            self.start_timeout()
        return message, payload


def _connection_limit(name: PoolName) -> int:
    """As many as the purpose needs, but within what the system lets a process open."""
    wanted = _LIMITS[name]
    try:
        import resource
    except ImportError:  # not on Windows
        return wanted
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(16, min(wanted, allowed - _FILES_LEFT_TO_OTHERS))
