"""Request bodies: read up to the limit of their route, decompressed with a cap, decoded off the
event loop. What a body takes is counted from its first byte until it is answered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

import zstandard
from starlette.requests import Request
from starlette.types import Message

from tinkex.errors import ClientError
from tinkex.server.errors import TooLarge
from tinkex.server.gate.admission import Ticket
from tinkex.server.http.body_limits import body_limit
from tinkex.server.http.compression import check_encoding, decompress, encoding_of
from tinkex.server.http.headers import CAME_WHOLE, header, is_declared_json
from tinkex.server.services import services_of
from tinkex.server.submit.body_progress import seen_body
from tinkex.server.submit.peek import TAIL_BYTES
from tinkex.wire import json
from tinkex.wire.limits import Limits

__all__ = ["decode", "decode_json", "read_body", "read_json"]

T = TypeVar("T")

_INLINE_BYTES = 32 * 1024  # smaller bodies are decoded on the loop: a thread would cost more
_PER_JSON_BYTE = 8  # bytes of Python values that a byte of JSON may become
_LAST_PARTS = 64  # of a body, as they came; together they hold its last fields


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, decompressed.

    Raises:
        TooLarge: it is longer than its route takes, before or after decompression.
        Unprocessable: the compression is unknown, or what it holds is not whole.
    """
    is_packed = check_encoding(encoding_of(request.scope))
    is_json = is_declared_json(request.scope)
    limit = body_limit(request.scope["path"], limits, is_json=is_json)
    raw = await _BodyReader(request, limit, limits.max_body_bytes).read()
    await _ticket(request).acquire_slot()
    body = await _unpacked(request, raw, limit, limits) if is_packed else raw
    if (seen := seen_body(request.scope)) is not None:
        seen.set_body(body)
    return body


async def read_json(request: Request, type_: type[T], limits: Limits) -> T:
    """The JSON body as a value of the protocol.

    Raises:
        ClientError: it is none; the message names the field.
    """
    return await decode_json(request, await read_body(request, limits), type_, limits)


async def decode_json(request: Request, body: bytes, type_: type[T], limits: Limits) -> T:
    """The value in a JSON body.

    Raises:
        ClientError: there is none; the message names the field.
    """
    return await decode(
        request, body, lambda: json.decode_request(body or b"{}", type_, limits=limits)
    )


async def decode(
    request: Request, body: bytes, read: Callable[[], T], *, is_json: bool = True
) -> T:
    """What `read` makes of a body; of a large one in a thread, and counted meanwhile."""
    if len(body) <= _INLINE_BYTES:
        return read()
    with _ticket(request).decoding(len(body) * (_PER_JSON_BYTE if is_json else 1)):
        return await asyncio.to_thread(read)


async def _unpacked(request: Request, raw: bytes, limit: int, limits: Limits) -> bytes:
    # What the announced limits allow in one request always fits: equal examples shrink to nothing.
    by_ratio = max(4 * limits.chunk_max_bytes, limits.max_decompression_ratio * len(raw))
    allowed = min(limit, by_ratio)
    expected = min(allowed, _declared_size(raw))
    ticket = _ticket(request)
    ticket.take_bytes(expected)
    if len(raw) <= _INLINE_BYTES and expected <= _INLINE_BYTES:
        body, broken = decompress(raw, allowed)
    else:
        body, broken = await asyncio.to_thread(decompress, raw, allowed)
    if (seen := seen_body(request.scope)) is not None:
        seen.set_body(body)
    if broken is not None:
        raise broken
    if len(body) > allowed:
        raise _too_large(allowed)
    ticket.take_bytes(max(0, len(body) - expected))
    return body


class _BodyReader:
    """Reads one body as it comes, within its size, its tenant's share and its time."""

    def __init__(self, request: Request, limit: int, most: int) -> None:
        config = services_of(request).config
        self._request = request
        self._limit = limit
        self._most = most  # bytes that are read to find the number of a request that is refused
        self._seen = seen_body(request.scope)
        self._parts: list[bytes] = []
        self._size = 0
        self._look_at: float = 1  # bytes
        self._is_over = False
        self._came_whole = CAME_WHOLE in request.scope["state"]
        self._silence_s = config.body_silence_s
        self._bytes_per_s = config.min_body_bytes_per_s
        self._began = asyncio.get_running_loop().time()

    async def read(self) -> bytes:
        """All of it.

        Raises:
            TooLarge: it is longer than the limit.
            Busy: the tenant has too much open already.
        """
        declared = _number(header(self._request.scope, b"content-length"))
        if declared is not None and declared > self._limit:
            if not header(self._request.scope, b"expect"):  # the first read would request the body
                await self._find_number(declared)
            raise _too_large(self._limit, declared)
        if declared:
            _ticket(self._request).take_bytes(declared)
        # A declared length is the whole body: the parser of the request sees to that.
        while self._size != declared and (part := await self._next()) is not None:
            if self._size > self._limit:
                await self._find_number(self._size)
                raise _too_large(self._limit)
            if declared is None:
                _ticket(self._request).take_bytes(len(part))
            if not self._is_over:
                self._look()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _look(self) -> None:
        """Looks for the number in the beginning of the body; a few times at most."""
        seen = self._seen
        if seen is not None and seen.target is None and self._size >= self._look_at:
            is_enough = self._size >= seen.head_bytes
            self._look_at = math.inf if is_enough else 2 * self._size
            seen.set_head(self._first(seen.head_bytes))

    def _first(self, count: int) -> bytes:
        size, enough = 0, 0
        while size < count and enough < len(self._parts):
            size += len(self._parts[enough])
            enough += 1
        return b"".join(self._parts[:enough])[:count]

    async def _find_number(self, size: int) -> None:
        """Reads on until it is known which number of which model is refused, or cannot be.

        What is read beyond the limit is not kept.
        """
        seen = self._seen
        if seen is None:
            return
        while seen.target is None and self._size < seen.head_bytes:
            if await self._next() is None:
                break
            self._look()
        if seen.target is None:
            seen.set_head(self._first(seen.head_bytes))
        if seen.target is not None or not seen.has_tail or size > self._most:
            return
        tail = b"".join(self._parts[-_LAST_PARTS:])
        while self._size <= self._most and (part := await self._next()) is not None:
            self._parts.clear()
            tail = (tail[-TAIL_BYTES:] + part)[-TAIL_BYTES:]
        seen.set_tail(tail)

    async def _next(self) -> bytes | None:
        """More of the body; None at its end."""
        if self._is_over:
            return None
        message = await (self._request.receive() if self._came_whole else self._receive())
        if message["type"] == "http.disconnect":
            gone = ClientError("The client went away while sending.", code="client-gone")
            gone.retryable = True
            raise gone
        self._is_over = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        self._parts.append(part)
        self._size += len(part)
        return part

    async def _receive(self) -> Message:
        size = self._size
        spent_s = asyncio.get_running_loop().time() - self._began
        left_s = self._silence_s + size / self._bytes_per_s - spent_s
        try:
            async with asyncio.timeout(min(self._silence_s, left_s)):
                return await self._request.receive()
        except TimeoutError as error:
            slow = ClientError(
                f"Only {size} bytes of the body came in {spent_s:.0f} s and then nothing, or too "
                "little.",
                hint="Send it again.",
                code="slow-body",
            )
            slow.status = 408
            raise slow from error


def _ticket(request: Request) -> Ticket:
    ticket: Ticket = request.scope["state"]["ticket"]
    return ticket


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _declared_size(raw: bytes) -> int:
    """The size that the first frame says its content has; 0 if it says none."""
    try:
        return max(0, zstandard.frame_content_size(raw))
    except zstandard.ZstdError:
        return 0


def _too_large(limit: int, size: int | None = None) -> TooLarge:
    found = "is longer" if size is None else f"has {size} bytes, more"
    return TooLarge(
        f"The request body {found} than the {limit} bytes that this server takes on this route.",
        hint="Send the data in more requests; get_server_capabilities lists the limits.",
    )
