"""Request bodies: read up to a limit, decompressed with a cap, decoded off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import zstandard
from starlette.requests import ClientDisconnect, Request

from tinkex.errors import ClientError
from tinkex.server.errors import TooLarge, Unprocessable
from tinkex.wire import json
from tinkex.wire.limits import Limits

T = TypeVar("T")

_HEAD_BYTES = 4096
_SILENCE_S = 30.0  # how long a client may pause inside a body
_INLINE_BYTES = 32 * 1024  # smaller bodies are decoded on the loop: a thread would cost more


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, decompressed.

    Raises:
        TooLarge: it is longer than the limit, before or after decompression.
        Unprocessable: the compression is unknown or broken.
    """
    raw = await _read_raw(request, limits.max_body_bytes)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return raw
    if encoding != "zstd":
        raise Unprocessable(
            f"Content-Encoding {encoding!r} is not understood.",
            hint="Send the body plain or as one zstd frame.",
            code="unknown-encoding",
        )
    if len(raw) <= _INLINE_BYTES:
        return _decompress(raw, limits)
    return await asyncio.to_thread(_decompress, raw, limits)


async def read_json(request: Request, type_: type[T], limits: Limits) -> T:
    """The JSON body as a value of the protocol.

    Raises:
        ClientError: it is none; the message names the field.
    """
    return await decode_json(await read_body(request, limits), type_, limits)


async def decode_json(body: bytes, type_: type[T], limits: Limits) -> T:
    """The value in a JSON body; large ones are decoded in a thread."""
    if len(body) <= _INLINE_BYTES:
        return json.decode_request(body or b"{}", type_, limits=limits)
    return await asyncio.to_thread(lambda: json.decode_request(body, type_, limits=limits))


async def _read_raw(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    stream = request.stream()
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, await _next_part(stream) or b"")
    parts, size = [], 0
    while (part := await _next_part(stream)) is not None:
        size += len(part)
        parts.append(part)
        if size > limit:
            raise _too_large(limit, parts[0])
    return b"".join(parts)


async def _next_part(stream: AsyncGenerator[bytes, None]) -> bytes | None:
    """More of the body; None at its end."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            return await anext(stream, None)
    except ClientDisconnect as error:
        raise ClientError("The client went away while sending.", code="client-gone") from error
    except TimeoutError as error:
        slow = ClientError(f"Nothing of the body came for {_SILENCE_S:g} s.", code="slow-body")
        slow.status = 408
        raise slow from error


def _decompress(raw: bytes, limits: Limits) -> bytes:
    # What clients are told to put into one request always fits: equal examples shrink to nothing.
    unpacked = max(4 * limits.chunk_max_bytes, limits.max_decompression_ratio * len(raw))
    allowed = min(limits.max_body_bytes, unpacked)
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw)
        plain = reader.read(allowed + 1)
    except zstandard.ZstdError as error:
        raise Unprocessable("The body is not a zstd frame.", code="bad-compression") from error
    if len(plain) > allowed:
        raise _too_large(allowed, plain[:_HEAD_BYTES])
    return plain


def _too_large(limit: int, head: bytes) -> TooLarge:
    refusal = TooLarge(
        f"The request body is larger than {limit} bytes.", hint="Send the data in more requests."
    )
    refusal.head = _plain_head(head)
    return refusal


def _plain_head(head: bytes) -> bytes:
    """How a body begins, even if it is the beginning of a zstd frame."""
    if not head.startswith(zstandard.FRAME_HEADER):
        return head[:_HEAD_BYTES]
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(head)
    try:
        return unpacker.read(_HEAD_BYTES)
    except zstandard.ZstdError:
        return b""
