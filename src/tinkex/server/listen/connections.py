"""Connections: uvicorn's protocol with bounds, and the one place that knows its attributes.

uvicorn waits for ever for the head of a request, for a client that does not read its answer, and
takes any number of connections; it drops the answer of a client that has closed its sending side,
and answers what it cannot parse in plain text. The protocol made here adds clocks, shares of the
connections (see `connection_shares`) and typed errors. Bodies have their own pace, in `bodies`,
where they are read. Answers leave as one piece, head and body together: what is sent costs more
than what is in it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.errors import ClientError
from tinkex.server.config import ConnectionBounds
from tinkex.server.errors import HeadTooLarge, MalformedRequest, OverCapacity, closing_response
from tinkex.server.http.connection_shares import CLAIM_CONNECTION, FULL, ConnectionShares
from tinkex.server.http.headers import CAME_WHOLE, answer_bytes
from tinkex.server.http.openai_paths import SAMPLING_PATHS

_logger = logging.getLogger(__name__)

_SPARE_FILES = 256
"""Files the server needs beside its connections: the database, adapters, the engine."""


def protocol_class(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """uvicorn's protocol, the quick one if it is installed, with these bounds."""
    config = uvicorn.Config(_over_capacity, log_config=None, ws="none", lifespan="off")
    config.load()
    logging.getLogger("uvicorn.error").addFilter(_is_of_the_server)
    # Some more than the maximum are open for a moment, to be answered that there are too many.
    most = min(bounds.max_connections, _room_for_connections() * 8 // 9)
    bounds = msgspec.structs.replace(bounds, max_connections=most)
    return bounded(config.http_protocol_class, bounds)


def bounded(base: type[asyncio.Protocol], bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """One of uvicorn's protocols with these bounds."""
    shares = ConnectionShares(bounds.max_connections)
    attributes = {"bounds": bounds, "shares": shares}
    return type("BoundedProtocol", (_Bounded, base), attributes)


class _Bounded(asyncio.Protocol):
    """What is added to uvicorn's protocol; attributes without a value here are its own."""

    bounds: ConnectionBounds
    shares: ConnectionShares
    app: ASGIApp
    app_state: dict[str, Any]
    client: tuple[str, int] | None
    cycle: Any
    loop: asyncio.AbstractEventLoop
    pipeline: Any = ()
    transport: _InOnePiece

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        whole = _InOnePiece(cast("asyncio.Transport", transport), lambda: self.cycle)
        super().connection_made(whole)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._ignores_input = False
        address = self.client[0] if self.client else ""
        self._slot, may_be_used = self.shares.add(self, address)
        self.app_state = {**self.app_state, CLAIM_CONNECTION: self._claim}
        if self.shares.is_flooded:
            self.transport.abort()
            return
        if not may_be_used:
            self.app = _over_capacity
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        before = self.cycle
        body_of = before if before is not None and before.more_body else None
        try:
            super().data_received(data)
        except Exception as error:  # a parser that stumbles costs its own connection, no other
            _logger.warning("A connection sent what no parser expects: %r", error)
            self.send_400_response("")
            return
        if self.cycle is not before:
            self.shares.set_busy(self._slot, True)
            self._stop_head_timer()
            if not self.cycle.more_body:
                self.cycle.scope["state"][CAME_WHOLE] = True
            return
        if body_of is not None and not body_of.response_complete:
            return  # the application reads it at its own pace
        if body_of is None:
            self._head_bytes += len(data)
        if self._head_bytes > self.bounds.max_head_bytes:
            most = self.bounds.max_head_bytes
            self._refuse(HeadTooLarge(f"The request's head is longer than {most} bytes."))
        elif self._head_timer is None:
            self._await_head()

    def eof_received(self) -> bool:
        """The client sends no more; earlier requests are answered. True keeps the connection.

        Clients of the OpenAI endpoint end their sending only by leaving, and a sample that no
        client waits for must not run on: they get no answer.
        """
        if self._owes_an_answer() and self.cycle.scope["path"] not in SAMPLING_PATHS:
            self.close_after_answer()
            self.shares.set_busy(self._slot, False)  # the client may be gone, too
            return True
        if self._head_bytes or not (self._is_answered() or self._owes_an_answer()):
            self._refuse(MalformedRequest("The request ended before it was complete."))
        return False

    def send_400_response(self, _msg: str) -> None:
        """Called by uvicorn while it handles the parser's error, which says more than its text."""
        error = sys.exception()
        reason = str((error and error.__context__) or error).rstrip(".")
        self._refuse(MalformedRequest(f"The request is not valid HTTP/1.1: {reason}."))

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn at a request to speak another protocol: the request is answered, but
        httptools parses nothing after it."""
        if not self._is_answered():
            self.close_after_answer()

    def on_response_complete(self) -> None:
        self.transport.flush()  # an answer to HEAD has no body that its head could wait for
        cast("Any", super()).on_response_complete()
        if self._is_answered():
            self.shares.set_busy(self._slot, False)

    def drop(self) -> None:
        self.transport.abort()

    def close_after_answer(self) -> None:
        self.cycle.keep_alive = False

    def _claim(self, owner: str) -> None:
        if owner != self._slot.owner:
            self.shares.claim(self._slot, owner)

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _owes_an_answer(self) -> bool:
        """Whether a whole request waits for its answer, or an answer is on its way."""
        if self._is_answered():
            return False
        return self.cycle.response_started or not self.cycle.more_body or bool(self.pipeline)

    def _refuse(self, error: ClientError) -> None:
        """Answers what is no request, after what is owed to requests before it, and closes."""
        if self._ignores_input:
            return
        self._ignores_input = True
        _logger.debug("No request, from %s: %s", self.client and self.client[0], error.message)
        if self._owes_an_answer():
            self.transport.pause_reading()
            self.close_after_answer()
            return
        self.transport.write(_closing_bytes(error))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shares.remove(self._slot)
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
        if self._is_answered():
            self.transport.close()
        else:
            self._await_head()  # a request is being answered: what came is the head of the next


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

    def flush(self) -> None:
        """Sends a head that no body follows."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
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


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """Drops uvicorn's warning for each connection that sends no request: strangers would fill the
    log, and it does not say who or why. `_refuse` logs that for those who look for it."""
    return record.msg != "Invalid HTTP request received."


def _is_head(data: bytes | bytearray | memoryview) -> bool:
    """Whether this is a whole head; an interim one (1xx) has no body to wait for."""
    start = bytes(data[:10])
    return start[:9] == b"HTTP/1.1 " and start[9:] != b"1" and bytes(data[-4:]) == b"\r\n\r\n"


def _closing_bytes(error: ClientError) -> bytes:
    """The whole answer to what is no request; the connection is closed after it."""
    answer = closing_response(error)
    return answer_bytes(error.status, answer.raw_headers, bytes(answer.body))


async def _over_capacity(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole application, to a connection above the limit."""
    await closing_response(OverCapacity(FULL))(scope, receive, send)


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
