"""Request bodies: read up to a limit, decompressed with a cap, decoded off the event loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import zstandard
from starlette.requests import Request
from starlette.types import Message

from tinkex.errors import ClientError
from tinkex.server.admission import Ticket
from tinkex.server.errors import TooLarge, Unprocessable
from tinkex.server.heads import CAME_WHOLE, header
from tinkex.server.services import services
from tinkex.wire import json
from tinkex.wire.limits import Limits

T = TypeVar("T")

_HEAD_BYTES = 4096
_MAX_WINDOW = 1 << 25  # of zstd; what levels up to 20 use
_INLINE_BYTES = 32 * 1024  # smaller bodies are decoded on the loop: a thread would cost more


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, decompressed.

    Raises:
        TooLarge: it is longer than the limit, before or after decompression.
        Unprocessable: the compression is unknown or broken.
    """
    raw = await _BodyReader(request).read(limits.max_body_bytes)
    await _ticket(request).take_turn()
    encoding = header(request.scope, b"content-encoding").strip().lower()
    if encoding in {"", "identity"}:
        return raw
    if encoding != "zstd":
        raise Unprocessable(
            f"Content-Encoding {encoding!r} is not understood.",
            hint="Send the body plain or as one zstd frame.",
            code="unknown-encoding",
        )
    if len(raw) <= _INLINE_BYTES:
        plain = _decompress(raw, limits)
    else:
        plain = await asyncio.to_thread(_decompress, raw, limits)
    _take_bytes(request, len(plain))
    return plain


async def read_json(request: Request, type_: type[T], limits: Limits) -> T:
    """The JSON body as a value of the protocol.

    Raises:
        ClientError: it is none; the message names the field.
    """
    return await decode_json(await read_body(request, limits), type_, limits)


async def decode_json(body: bytes, type_: type[T], limits: Limits) -> T:
    """The value in a JSON body; large ones are decoded in a thread."""
    check_json_size(body, limits)
    if len(body) <= _INLINE_BYTES:
        return json.decode_request(body or b"{}", type_, limits=limits)
    return await asyncio.to_thread(lambda: json.decode_request(body, type_, limits=limits))


def check_json_size(body: bytes, limits: Limits) -> None:
    """Refuses JSON that is longer than JSON may be.

    Raises:
        TooLarge: it is.
    """
    if len(body) > limits.max_json_bytes:
        raise _too_large(limits.max_json_bytes, body, len(body), "JSON body")


class _BodyReader:
    """Reads one body as it comes, within its size, its tenant's share and its time."""

    def __init__(self, request: Request) -> None:
        config = services(request).config
        self._request = request
        self._is_over = False
        self._came_whole = CAME_WHOLE in request.scope["state"]
        self._silence_s = config.body_silence_s
        self._bytes_per_s = config.min_body_bytes_per_s
        self._began = asyncio.get_running_loop().time()

    async def read(self, limit: int) -> bytes:
        """All of it.

        Raises:
            TooLarge: it is longer than `limit`.
            Busy: the tenant has too much open already.
        """
        declared = _number(header(self._request.scope, b"content-length"))
        if declared is not None and declared > limit:
            raise _too_large(limit, await self._next(0) or b"", declared)
        if declared:
            _take_bytes(self._request, declared)
        parts, size = [], 0
        # A declared length is the whole body: whoever parses the request sees to that.
        while size != declared and (part := await self._next(size)) is not None:
            size += len(part)
            parts.append(part)
            if size > limit:
                raise _too_large(limit, parts[0])
            if declared is None:
                _take_bytes(self._request, len(part))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _next(self, size: int) -> bytes | None:
        """More of the body; None at its end."""
        if self._is_over:
            return None
        message = await (self._request.receive() if self._came_whole else self._receive(size))
        if message["type"] == "http.disconnect":
            raise ClientError("The client went away while sending.", code="client-gone")
        self._is_over = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def _receive(self, size: int) -> Message:
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


def _take_bytes(request: Request, count: int) -> None:
    _ticket(request).take_bytes(count)


def _ticket(request: Request) -> Ticket:
    ticket: Ticket = request.scope["state"]["ticket"]
    return ticket


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _decompress(raw: bytes, limits: Limits) -> bytes:
    # What clients are told to put into one request always fits: equal examples shrink to nothing.
    unpacked = max(4 * limits.chunk_max_bytes, limits.max_decompression_ratio * len(raw))
    allowed = min(limits.max_body_bytes, unpacked)
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(raw)
        plain = reader.read(allowed + 1)
    except zstandard.ZstdError as error:
        raise Unprocessable("The body is not a zstd frame.", code="bad-compression") from error
    if len(plain) > allowed:
        raise _too_large(allowed, plain[:_HEAD_BYTES])
    return plain


def _too_large(
    limit: int, head: bytes, size: int | None = None, what: str = "request body"
) -> TooLarge:
    found = "is longer" if size is None else f"has {size} bytes, more"
    refusal = TooLarge(
        f"The {what} {found} than this server's limit of {limit} bytes.",
        hint="Send the data in more requests.",
    )
    refusal.head = _plain_head(head)
    return refusal


def _plain_head(head: bytes) -> bytes:
    """How a body begins, even if it is the beginning of a zstd frame."""
    if not head.startswith(zstandard.FRAME_HEADER):
        return head[:_HEAD_BYTES]
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(head)
    try:
        return unpacker.read(_HEAD_BYTES)
    except zstandard.ZstdError:
        return b""
