"""The protobuf wire format: keys, varints, and lengths in front of bytes.

Knows no message. A key is the number that stands in front of a field: its number times eight plus
its wire type, so 0x0A is "field 1, bytes". Readers look for the keys they know; a field of an
unknown number or of another wire type is skipped, as the format requires. Groups, which the format
has deprecated, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache

from tinkex.wire._errors import Malformed

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
_WORD = 1 << 64
_SHORT = [bytes([value]) for value in range(128)]
_DOUBLE = struct.Struct("<d")


@lru_cache(maxsize=4096)  # lengths repeat: a batch has few different ones
def varint(value: int) -> bytes:
    """Encodes a number from 0 to 2**64-1, seven bits to a byte."""
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """Encodes an int32 or int64; negative ones take the format's ten bytes."""
    return varint(value % _WORD)


def delimited(key: int, payload: bytes) -> bytes:
    """Encodes a field of bytes, text or a message."""
    return _SHORT[key] + varint(len(payload)) + payload


def text(key: int, value: str) -> bytes:
    """Encodes a field of text, left out if empty, as in proto3."""
    return delimited(key, value.encode()) if value else b""


def number(key: int, value: int) -> bytes:
    """Encodes a whole-number field, left out if 0, as in proto3."""
    return _SHORT[key] + signed(value) if value else b""


def double(key: int, value: float) -> bytes:
    """Encodes a floating-point field."""
    return _SHORT[key] + _DOUBLE.pack(value)


@lru_cache(maxsize=4096)
def packed(key: int, values: tuple[int, ...]) -> bytes:
    """Encodes a repeated whole-number field, left out if there are none."""
    payload = b"".join(map(signed, values))
    return delimited(key, payload) if payload else b""


class FieldBudget:
    """The number of fields that may still be read from one body, in all of its messages together.

    A field can be as short as two bytes and costs as much to read as hundreds of bytes of a tensor.
    """

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit


def fields(
    body: bytes, at: int, end: int, budget: FieldBudget | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yields the fields of the message in `body[at:end]`, as (key, a, b).

    For a varint `a` is its value; for all else the content is `body[a:b]`.

    Raises:
        Malformed: the bytes are not a message, or have more fields than the budget allows.
    """
    while at < end:
        if budget is not None:
            budget.left -= 1
            if budget.left < 0:
                raise Malformed(
                    f"the body has more than {budget.limit} protobuf fields, this server's limit "
                    "(max_protobuf_fields); send its data in more requests"
                )
        key = body[at]
        at += 1
        if key >= 0x80:  # most numbers have one byte: those are read here, without a call
            key, at = read_varint(body, at - 1, end)
        kind = key & 7
        if kind == 2:
            size, a = read_varint(body, at, end)
            stop = a + size
        elif kind == 0:
            a, stop = read_varint(body, at, end)
        elif kind in _FIXED_BYTES:
            a, stop = at, at + _FIXED_BYTES[kind]
        else:
            raise Malformed(f"wire type {kind} is not used")
        if stop > end or key < 8:
            raise Malformed("a message ends inside a field, or a field has no number")
        yield key, a, stop
        at = stop


_FIXED_BYTES = {1: 8, 5: 4}


def read_varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Returns the varint at `at`, and where it ends.

    Raises:
        Malformed: it does not end before `end`, or has more than ten bytes.
    """
    if at >= end:
        raise Malformed("a message ends inside a number")
    value = body[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    if at < end and body[at] < 0x80:
        return value | body[at] << 7, at + 1
    for shift in range(7, 70, 7):
        if at >= end:
            break
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _WORD, at
    raise Malformed("a number does not end")


def map_entry(
    body: bytes, at: int, end: int, value_key: int, budget: FieldBudget | None = None
) -> tuple[str, tuple[int, int]]:
    """Returns the name of a map's entry, and the span of its value (empty if it was left out).

    Raises:
        Malformed: the bytes are no message, or the name is not UTF-8.
    """
    name, value = "", (0, 0)
    for key, a, b in fields(body, at, end, budget):
        if key == 0x0A:
            name = to_text(body, a, b)
        elif key == value_key:
            value = (a, b)
    return name, value


def to_int64(value: int) -> int:
    """Returns the signed number that a varint encodes."""
    return value - _WORD if value > INT64_MAX else value


def to_int32(value: int) -> int:
    """Returns the signed 32-bit number of a varint; higher bits are dropped,
    as the format requires."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value > INT32_MAX else value


def to_text(body: bytes, at: int, end: int) -> str:
    """Returns the text in `body[at:end]`.

    Raises:
        Malformed: it is not UTF-8.
    """
    try:
        return body[at:end].decode()
    except UnicodeDecodeError as error:
        raise Malformed("a text is not UTF-8") from error


def to_double(body: bytes, at: int, end: int) -> float:
    """Returns the floating-point number in `body[at:end]`; 0 if it was left out."""
    value: float = _DOUBLE.unpack_from(body, at)[0] if end > at else 0.0
    return value


def to_ints(body: bytes, at: int, end: int, limit: int) -> list[int]:
    """Returns the packed whole numbers in `body[at:end]`.

    Raises:
        Malformed: there are more than `limit`, or one does not end.
    """
    values: list[int] = []
    while at < end:
        value, at = read_varint(body, at, end)
        values.append(to_int64(value))
        if len(values) > limit:
            raise Malformed(f"a list has more than {limit} numbers")
    return values
