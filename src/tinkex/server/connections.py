"""Connections: how many there may be, and how long a slow one is waited for.

uvicorn waits for ever for the head of a request, for a client that does not read its answer, and
takes any number of connections. The protocol made here is uvicorn's own with a clock beside it.
Bodies have their own pace, in `bodies`, where they are read. Answers leave as one piece, head and
body together: what is sent costs more than what is in it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.server.config import ConnectionBounds
from tinkex.server.doorstep import Doorstep
from tinkex.server.errors import HeadTooLarge, OverCapacity, error_response
from tinkex.server.heads import CAME_WHOLE

_logger = logging.getLogger(__name__)

_SPARE_FILES = 256
"""Files the server needs beside its connections: the database, adapters, the engine."""


def protocol_class(
    bounds: ConnectionBounds, doorstep: Doorstep | None = None
) -> type[asyncio.Protocol]:
    """uvicorn's protocol, the quick one if it is installed, with these bounds."""
    config = uvicorn.Config(_over_capacity, log_config=None, ws="none", lifespan="off")
    config.load()
    most = min(bounds.max_connections, _room_for_connections())
    bounds = msgspec.structs.replace(bounds, max_connections=most)
    return bounded(config.http_protocol_class, bounds, doorstep)


def bounded(
    base: type[asyncio.Protocol], bounds: ConnectionBounds, doorstep: Doorstep | None = None
) -> type[asyncio.Protocol]:
    """One of uvicorn's protocols with these bounds."""
    return type("BoundedProtocol", (_Bounded, base), {"bounds": bounds, "doorstep": doorstep})


class _Bounded(asyncio.Protocol):
    """What is added to uvicorn's protocol; `cycle`, `app` and `connections` are its own."""

    bounds: ConnectionBounds
    doorstep: Doorstep | None
    app: ASGIApp
    connections: set[Any]
    cycle: Any
    loop: asyncio.AbstractEventLoop
    _unset_keepalive_if_required: Callable[[], None]
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        whole = _InOnePiece(cast("asyncio.Transport", transport), lambda: self.cycle)
        super().connection_made(whole)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        if len(self.connections) > 2 * self.bounds.max_connections:
            self.transport.abort()  # too many to say sorry to
            return
        if len(self.connections) > self.bounds.max_connections:
            self.app = _over_capacity
        self._await_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        body_of = before if before is not None and before.more_body else None
        try:
            if self._is_refused(data):
                return
            super().data_received(data)
        except Exception as error:  # a parser that stumbles costs its own connection, no other
            _logger.warning("A connection sent what no parser expects: %r", error)
            self.transport.abort()
            return
        if self.cycle is not before:
            self._stop_head_timer()
            if not self.cycle.more_body:
                self.cycle.scope["state"][CAME_WHOLE] = True
            return
        if body_of is not None and not body_of.response_complete:
            return  # somebody reads it at its own pace
        if body_of is None:
            self._head_bytes += len(data)
        if self._head_bytes > self.bounds.max_head_bytes:
            self.transport.abort()
        elif self._head_timer is None:
            self._await_head()

    def _is_refused(self, data: bytes) -> bool:
        """Whether this was a whole request, refused at the doorstep; uvicorn need not know."""
        if self.doorstep is None or self._head_bytes or self.app is _over_capacity:
            return False
        if self.cycle is not None and (self.cycle.more_body or not self.cycle.response_complete):
            return False
        if (refusal := self.doorstep.refusal(data)) is None:
            return False
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        self._await_head()
        self.transport.write(refusal)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            abort = self.transport.abort
            self._write_timer = self.loop.call_later(self.bounds.write_timeout_s, abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _await_head(self) -> None:
        """Gives the next head its time; what is left of an unread body has the same time."""
        self._head_timer = self.loop.call_later(self.bounds.head_timeout_s, self._head_is_late)

    def _stop_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy:
            self._await_head()  # a request is being answered: what came is the head of the next
        else:
            self.transport.close()


class _InOnePiece(asyncio.Transport):
    """A transport that keeps the head of an answer until its body comes.

    `current` is the request the connection is at; its first piece may be the head of its answer.
    """

    def __init__(self, inner: asyncio.Transport, current: Callable[[], object]) -> None:
        super().__init__()
        self._inner = inner
        self._current = current
        self._answering: object = None
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif self._answering is not (current := self._current()) and _is_head(data):
            self._answering, self._head = current, bytes(data)
            return
        self._inner.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)


def _is_head(data: bytes | bytearray | memoryview) -> bool:
    """Whether this is a whole head; an interim one (1xx) has no body to wait for."""
    start = bytes(data[:10])
    return start[:9] == b"HTTP/1.1 " and start[9:] != b"1" and bytes(data[-4:]) == b"\r\n\r\n"


class HeadMiddleware:
    """Answers 431 to a head that is too large, before anybody looks at it."""

    def __init__(self, app: ASGIApp, bounds: ConnectionBounds) -> None:
        self._app = app
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> HeadTooLarge | None:
        headers, bounds = scope["headers"], self._bounds
        if len(headers) > bounds.max_headers:
            return HeadTooLarge(
                f"The request has {len(headers)} headers, above this server's limit of "
                f"{bounds.max_headers}."
            )
        size = len(scope["path"]) + len(scope["query_string"])
        size += sum([len(name) + len(value) + 4 for name, value in headers])
        if size > bounds.max_head_bytes:
            return HeadTooLarge(
                f"The request's head has {size} bytes, above this server's limit of "
                f"{bounds.max_head_bytes}."
            )
        return None


async def _over_capacity(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole application, to a connection above the limit."""
    answer = error_response(OverCapacity("The server has as many connections as it may."))
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)


def _room_for_connections() -> int:
    """How many connections the process may have open; its own limit is raised as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):  # some systems refuse; the lower limit holds
            pass
    return max(64, soft - _SPARE_FILES)
