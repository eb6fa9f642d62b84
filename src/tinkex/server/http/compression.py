"""Compressed bodies: all zstd frames taken, within a size, and nothing that is not whole.

A decompressor stops without a word at the end of a frame and where its input ends. So each frame is
checked to be complete, and what follows it must be a frame as well.
"""

from __future__ import annotations

import zstandard
from starlette.types import Scope

from tinkex.errors import ClientError
from tinkex.server.errors import Unprocessable
from tinkex.server.http.headers import header

__all__ = ["PLAIN", "check_encoding", "decompress", "encoding_of", "plain_head"]

PLAIN = frozenset({"", "identity"})
"""Encodings of a body that is not compressed."""

_MAX_WINDOW = 1 << 25  # of zstd; what levels up to 20 use
_MAX_FRAMES = 4096
_MOST_PER_BYTE = (
    1 << 15
)  # decompressed bytes that one byte of input can stand for: a run of 128 KiB
_LEAST_PIECE, _MOST_PIECE = 64, 1 << 16
_HINT = "Send the body plain or as complete zstd frames, one after the other."


def encoding_of(scope: Scope) -> str:
    """The Content-Encoding of a request, in small letters; empty if it has none."""
    return header(scope, b"content-encoding").strip().lower()


def check_encoding(encoding: str) -> bool:
    """Whether a body with this Content-Encoding is compressed.

    Raises:
        Unprocessable: the encoding is not known.
    """
    if encoding in PLAIN:
        return False
    if encoding != "zstd":
        raise Unprocessable(
            f"Content-Encoding {encoding!r} is not understood.", hint=_HINT, code="unknown-encoding"
        )
    return True


def decompress(raw: bytes, allowed: int) -> tuple[bytes, ClientError | None]:
    """What is in the frames, and why it is not all: None if it is.

    Stops soon after `allowed` bytes; more than that is for the caller to refuse.
    """
    parts: list[bytes] = []
    size = at = 0
    for _ in range(_MAX_FRAMES):
        frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        while not frame.eof and at < len(raw):
            room = (allowed - size) // _MOST_PER_BYTE
            piece = raw[at : at + min(_MOST_PIECE, max(_LEAST_PIECE, room))]
            try:
                parts.append(frame.decompress(piece))
            except zstandard.ZstdError as error:
                return b"".join(parts), _broken(f"are not a zstd frame: {error}", at)
            at += len(piece)
            size += len(parts[-1])
            if size > allowed:
                return b"".join(parts), None
        if not frame.eof:
            return b"".join(parts), _broken("end inside a zstd frame", at)
        at -= len(frame.unused_data)
        if at == len(raw):
            return b"".join(parts), None
    return b"".join(parts), _broken(f"are more than {_MAX_FRAMES} zstd frames", at)


def plain_head(head: bytes, size: int) -> bytes:
    """The first bytes in a frame of which only the beginning is known, as far as that can be read.

    A block, 128 KiB at most, must be there as a whole before anything in it can be.
    """
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(head)
    try:
        return reader.read(size)
    except zstandard.ZstdError:
        return b""


def _broken(what: str, at: int) -> Unprocessable:
    return Unprocessable(
        f"The first {at} bytes of the compressed body {what}.", hint=_HINT, code="bad-compression"
    )
