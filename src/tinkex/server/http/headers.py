"""Heads of requests: headers found without an object around all of them, and heads refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.errors import ClientError
from tinkex.server.config import ConnectionBounds
from tinkex.server.errors import (
    HeadTooLarge,
    MalformedRequest,
    UnknownTransferCoding,
    closing_response,
)

__all__ = ["CAME_WHOLE", "HeadMiddleware", "answer_bytes", "header", "is_declared_json"]

CAME_WHOLE = "came_whole"
"""In a request's state: its body was there together with its head."""

_HOST = re.compile(
    r"(?:\[[\w:.%~-]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?", re.ASCII
)
"""An IP address in brackets, or a registered name or IPv4 address, and maybe a port (RFC 3986)."""

_SHOWN_CHARS = 200


def header(scope: Scope, name: bytes, default: str = "") -> str:
    """The first header of this name, which is given in small letters."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found.decode("latin-1")
    return default


def is_declared_json(scope: Scope) -> bool:
    """Whether the Content-Type names JSON; upper and lower case are the same in it."""
    return "json" in header(scope, b"content-type").lower()


def answer_bytes(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A whole answer as it goes over the wire, for a request that no application sees."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return (
        line
        + b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        + (b"\r\n" + body)
    )


class HeadMiddleware:
    """Answers 431 to a head that is too large, 400 to one without exactly one valid Host, and 501
    to a body in a transfer coding other than chunked.

    Each ends its connection. So does a request with `Expect: 100-continue` that is answered before
    its body was requested: the next bytes could be that body or another request.
    """

    def __init__(self, app: ASGIApp, bounds: ConnectionBounds) -> None:
        self._app = app
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = [name for name, _ in scope["headers"]]
        if b"expect" in names:
            expected = _Expected(receive, send)
            receive, send = expected.receive, expected.send
        if (refusal := self._refusal(scope, names)) is not None:
            await closing_response(refusal)(scope, receive, send)
            return
        if b"transfer-encoding" in names and not _is_chunked(scope):
            await closing_response(_unknown_coding(scope))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, names: list[bytes]) -> ClientError | None:
        headers, bounds = scope["headers"], self._bounds
        if len(names) > bounds.max_headers:
            return HeadTooLarge(
                f"The request has {len(names)} headers, above this server's limit of "
                f"{bounds.max_headers}."
            )
        size = len(scope["path"]) + len(scope["query_string"])
        size += sum([len(name) + len(value) + 4 for name, value in headers])
        if size > bounds.max_head_bytes:
            return HeadTooLarge(
                f"The request's head has {size} bytes, above this server's limit of "
                f"{bounds.max_head_bytes}."
            )
        num_hosts = names.count(b"host")
        if num_hosts > 1 or (num_hosts == 0 and scope["http_version"] != "1.0"):
            return MalformedRequest(f"The request has {num_hosts} Host headers; it must have one.")
        if num_hosts and _HOST.fullmatch(host := header(scope, b"host")) is None:
            return MalformedRequest(
                f"The Host header {host[:_SHOWN_CHARS]!r} is no host name or address, with or "
                "without a port."
            )
        return None


def _is_chunked(scope: Scope) -> bool:
    """Whether chunked is the body's only transfer coding; the parser has undone no other."""
    return _transfer_coding(scope) == "chunked"


def _transfer_coding(scope: Scope) -> str:
    codings = [value for name, value in scope["headers"] if name == b"transfer-encoding"]
    return b", ".join(codings).decode("latin-1").strip().lower()


def _unknown_coding(scope: Scope) -> UnknownTransferCoding:
    found = _transfer_coding(scope)[:_SHOWN_CHARS]
    return UnknownTransferCoding(f"The Transfer-Encoding {found!r} is not understood.")


class _Expected:
    """The messages of a request whose client waits until the server requests the body."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_asked_for = False

    async def receive(self) -> Message:
        self._is_asked_for = True  # uvicorn sends 100 when the body is first read
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._is_asked_for:
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await self._send(message)
