"""One HTTP/1.1 connection as cheap as Python has it: prepared bytes out, one answer at a time back.

Callbacks, not tasks: the driver must leave the machine to the server it measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

_LENGTH = b"\r\ncontent-length: "

OnAnswer = Callable[[int, bytes, bytes], None]
"""Takes status, head (in lower case) and body; status 0 means that the connection was lost."""


class Wire(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._on_answer: OnAnswer | None = None
        self._received = b""
        self._head = b""
        self._size = -1

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of the class

    def send(self, data: bytes, on_answer: OnAnswer) -> None:
        """Sends a request; its answer goes to the callback."""
        assert self._transport is not None
        assert self._on_answer is None, "one request at a time"
        self._on_answer = on_answer
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if self._size < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = self._received[: end + 2].lower()
            self._size = end + 4 + self._length()
        if len(self._received) >= self._size:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        on_answer, self._on_answer = self._on_answer, None
        self._received, self._size = b"", -1
        if on_answer is not None:
            on_answer(0, b"", b"")

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.close()

    def _length(self) -> int:
        at = self._head.find(_LENGTH)
        if at < 0:
            return 0
        at += len(_LENGTH)
        return int(self._head[at : self._head.index(b"\r\n", at)])

    def _finish(self) -> None:
        body_at = self._received.index(b"\r\n\r\n") + 4
        status, body = int(self._received[9:12]), self._received[body_at : self._size]
        self._received, self._size = self._received[self._size :], -1
        on_answer, self._on_answer = self._on_answer, None
        assert on_answer is not None, "an answer to no request"
        on_answer(status, self._head, body)


async def connect(host: str, port: int) -> Wire:
    """An open connection."""
    _, wire = await asyncio.get_running_loop().create_connection(Wire, host, port)
    return wire
