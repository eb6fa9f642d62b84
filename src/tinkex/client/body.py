"""Uncompressed request bodies in parts, written piece by piece.

A training request may have five megabytes in thousands of parts. Joined whole it would be held
three times over: by us, by aiohttp (which puts the headers before it) and by the event loop (what
the socket does not take at once). In pieces only the piece under way is. A
body that is compressed is joined first (`compression`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

PIECE_BYTES = 1 << 20


class PartsPayload(Payload):
    """A body of known size in parts; may be sent more than once."""

    _autoclose = True
    _value: Sequence[bytes]

    def __init__(self, parts: Sequence[bytes], content_type: str) -> None:
        super().__init__(parts, content_type=content_type)
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text."""
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Writes the body, no faster than the server takes it."""
        for piece in pieces(self._value):
            await writer.write(piece)


def pieces(parts: Sequence[bytes], size: int = PIECE_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces of about `size`; a part that is larger is not copied.

    >>> list(pieces([b"ab", b"cd", b"ef"], 4))
    [b'abcd', b'ef']
    """
    gathered: list[bytes] = []
    held = 0
    for part in parts:
        if gathered and held + len(part) > size:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, held = [], 0
        gathered.append(part)
        held += len(part)
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
