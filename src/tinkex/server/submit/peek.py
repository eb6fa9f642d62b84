"""The model and number of a request, found in what is known of its body.

A refused number must count as used, so it is looked for even in a body that cannot be decoded or
was not read to its end: in the first bytes, where today's clients write it, and in the last ones,
where clients before 0.25 do. It runs on the event loop, so the work is bounded whatever the body
holds: a few hundred names, strings and brackets at the beginning, a few fields at the end.
"""

from __future__ import annotations

import itertools
import re

import msgspec

from tinkex.wire import json, protobuf

__all__ = ["HEAD_BYTES", "TAIL_BYTES", "Target", "target_of_json", "target_of_protobuf"]

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 4 * 1024
_DECODED_BYTES = 512 * 1024  # of larger bodies only the beginning and the end are looked at
_MAX_ID_CHARS = 256
_MAX_TOKENS = 512

_CHARS = rb'(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(
    rb'"(%(chars)s)(?:"|\\?\Z)'  # a string; if it is a name, with its value:
    rb'(?:\s*+:\s*+(?:(\d++)(?![\w.+-])|"(%(chars)s)")?)?'  # digits or a string, if it is that
    rb"|([\[\]{}])" % {b"chars": _CHARS},
    re.DOTALL,
)
_MORE_FIELDS = rb'(?:\s*,\s*"\w{1,64}"\s*:\s*(?:[\w.+-]{1,64}|"[^"\\]*+")){0,16}+\s*\}\s*\Z'
_LAST_FIELDS = re.compile(
    rb'[{,]\s*"model_id"\s*:\s*"([^"\\]{1,256})"\s*,\s*"seq_id"\s*:\s*(\d{1,10})' + _MORE_FIELDS
)
_LAST_NUMBER = re.compile(rb'[{,]\s*"seq_id"\s*:\s*(\d{1,10})' + _MORE_FIELDS)


class Target(msgspec.Struct, frozen=True):
    """Which operation of which model a body speaks of."""

    model_id: str
    seq_id: int


def target_of_protobuf(head: bytes) -> Target | None:
    """What fields 1 and 2 of a training request say, if they are among the first bytes."""
    model_id, seq_id = protobuf.peek_target(head[:HEAD_BYTES])
    return _target(model_id, seq_id)


def target_of_json(head: bytes, tail: bytes = b"") -> Target | None:
    """What the fields `model_id` and `seq_id` of the outermost object say.

    `tail` is the end of a body whose beginning is `head`; of a body that is known as a whole both
    are the body.
    """
    model_id, seq_id = _first_fields(head[:HEAD_BYTES])
    end = tail[-TAIL_BYTES:]
    if seq_id is None and model_id is not None and (found := _LAST_NUMBER.search(end)):
        seq_id = int(found[1])
    elif seq_id is None and (found := _LAST_FIELDS.search(end)):
        model_id, seq_id = _text(found[1]), int(found[2])
    target = _target(model_id, seq_id)
    if target is None and tail is head and len(head) <= _DECODED_BYTES:
        return _decoded(head)
    return target


def _decoded(body: bytes) -> Target | None:
    """What a decoder finds, at any position in the message."""
    try:
        found = msgspec.json.decode(body, type=Target)
    except json.BAD_INPUT:
        return None
    return _target(found.model_id, found.seq_id)


def _first_fields(head: bytes) -> tuple[str | None, int | None]:
    """`model_id` and `seq_id` of the object that begins here, as far as they are there."""
    model_id, seq_id = None, None
    depth = 0
    for token in itertools.islice(_TOKEN.finditer(head), _MAX_TOKENS):
        name, number, text, bracket = token.groups()
        if bracket is not None:
            depth += 1 if bracket in b"[{" else -1
        elif depth != 1:
            continue
        elif name == b"model_id" and text is not None:
            model_id = _text(text)
        elif name == b"seq_id" and number is not None and token.end() < len(head):
            seq_id = int(number) if len(number) <= 10 else None
        if model_id is not None and seq_id is not None:
            break
    return model_id, seq_id


def _text(raw: bytes) -> str | None:
    """An id, which never needs an escape."""
    return raw.decode() if raw.isascii() and b"\\" not in raw else None


def _target(model_id: str | None, seq_id: int | None) -> Target | None:
    if not model_id or len(model_id) > _MAX_ID_CHARS or not seq_id or not 0 < seq_id < 2**31:
        return None
    return Target(model_id, seq_id)
