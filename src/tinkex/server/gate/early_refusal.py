"""Refusing at the doorstep: a submission that cannot be let in is answered before it is parsed.

Under overload most of what comes is refused, and every refusal takes time from work that was let
in. Parsing a request and starting a task for it costs ten times what the answer does. So while the
server is tight, what came whole in one piece is looked at as bytes, for three things: which route,
whose key, where it ends. Whatever is not plain, the parser gets.
"""

from __future__ import annotations

import random
import re

from tinkex.server.gate.overload import REFUSALS, SUBMISSIONS, Door
from tinkex.server.http.headers import answer_bytes

__all__ = ["Doorstep"]

_ROUTES = "|".join(re.escape(path) for path in SUBMISSIONS).encode()
_LINE = re.compile(rb"POST (?:%s) HTTP/1\.1\r\n" % _ROUTES)
_KEY = re.compile(rb"\r\nx-api-key:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_NOT_PLAIN = re.compile(
    rb"\r\n(?:transfer-encoding:|expect:|upgrade:|connection:(?![ \t]*keep-alive[ \t]*\r\n))",
    re.IGNORECASE,
)


class Doorstep:
    """Looks at what a connection sent while nothing else of it is open."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def refusal(self, data: bytes) -> bytes | None:
        """The whole answer to one whole request; None lets the parser have it."""
        if not self._door.is_tight() or (key := _key_of(data)) is None:
            return None
        return random.choice(_ANSWERS) if self._door.turns_away(key) else None  # noqa: S311


def _key_of(data: bytes) -> str | None:
    """The key of a plain submission that is here from its first byte to its last."""
    if _LINE.match(data) is None:
        return None
    end = data.find(b"\r\n\r\n") + 2
    keys, lengths = _KEY.findall(data, 0, end), _LENGTH.findall(data, 0, end)
    if len(keys) != 1 or len(lengths) != 1 or _NOT_PLAIN.search(data, 0, end):
        return None
    is_whole = len(data) == end + 2 + int(lengths[0])
    return keys[0].decode("latin-1") if is_whole else None


_ANSWERS = [
    answer_bytes(start["status"], start["headers"], body["body"]) for start, body in REFUSALS
]
