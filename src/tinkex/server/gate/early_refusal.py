"""Early refusal: under overload a submission is answered before it is parsed.

Parsing a request and starting a task for it costs ten times what the 429 response does, and under
overload most submissions are refused. So while the gate is limiting, a request that arrived in one
piece is inspected as bytes for three things: its route, its key, its end. Anything unusual goes to
the HTTP parser.
"""

from __future__ import annotations

import random
import re

from tinkex.server.gate.overload import REFUSALS, SUBMISSIONS, OverloadGate
from tinkex.server.http.headers import answer_bytes

__all__ = ["EarlyRefusal"]

_ROUTES = "|".join(re.escape(path) for path in SUBMISSIONS).encode()
_LINE = re.compile(rb"POST (?:%s) HTTP/1\.1\r\n" % _ROUTES)
_KEY = re.compile(rb"\r\nx-api-key:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_NOT_PLAIN = re.compile(
    rb"\r\n(?:transfer-encoding:|expect:|upgrade:|connection:(?![ \t]*keep-alive[ \t]*\r\n))",
    re.IGNORECASE,
)


class EarlyRefusal:
    """Checks data of a connection that has no other request open."""

    def __init__(self, gate: OverloadGate) -> None:
        self._gate = gate

    def refusal(self, data: bytes) -> bytes | None:
        """The response to one whole request, or None to hand it to the parser."""
        if not self._gate.is_limiting() or (key := _key_of(data)) is None:
            return None
        return random.choice(_ANSWERS) if self._gate.refuses(key) else None  # noqa: S311


def _key_of(data: bytes) -> str | None:
    """The key of a plain submission that has arrived completely."""
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
