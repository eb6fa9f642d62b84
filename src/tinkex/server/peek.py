"""The model and number at the head of a training request whose rest cannot be read.

A refused number must count as used, so it is looked for even in a body that is refused.
"""

from __future__ import annotations

from tinkex.server.submission import Target

_MODEL_ID, _SEQ_ID = 0x0A, 0x10  # field 1, bytes; field 2, varint


def target_of_protobuf(body: bytes) -> Target | None:
    """What fields 1 and 2 say, if they come first, as every known encoder writes them."""
    try:
        if body[0] != _MODEL_ID:
            return None
        length, at = _varint(body, 1)
        model_id = body[at : at + length].decode()
        at += length
        if length > 256 or body[at] != _SEQ_ID:
            return None
        return Target(model_id, _varint(body, at + 1)[0])
    except (IndexError, UnicodeDecodeError):
        return None


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = body[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise IndexError("no varint")
