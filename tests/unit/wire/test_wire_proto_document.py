"""`tinker_public.proto` describes what the official client speaks and what our codec writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tinker.proto import tinker_public_pb2 as pb

import tinkex.wire
from tests.unit.wire import proto_text
from tests.unit.wire.official_calls import DATA
from tests.unit.wire.test_wire_official_answers import FULL, OUTPUTS
from tinkex.wire import protobuf

DOCUMENT = Path(tinkex.wire.__file__).with_name("tinker_public.proto")
CLASSES = proto_text.load(DOCUMENT.read_text(), "documented")
NEWER = proto_text.load(
    re.sub(r"(message \w+ \{)", r"\1\n  string from_the_future = 99;", DOCUMENT.read_text()),
    "newer",
)
NOT_SENT = {"SamplingParams", "StopStrings", "StopTokens"}


def _fields(descriptor: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            field.number,
            field.name,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.containing_oneof.name if field.containing_oneof else None,
            field.message_type.name if field.message_type else None,
            _values(field.message_type),
        )
        for field in descriptor.fields
    )


def _values(descriptor: Any) -> list[tuple[int, str, int]]:
    if descriptor is None or not descriptor.GetOptions().map_entry:
        return []
    return [(field.number, field.name, field.type) for field in descriptor.fields]


def test_document_names_every_message_that_is_sent() -> None:
    assert set(CLASSES) == set(pb.DESCRIPTOR.message_types_by_name) - NOT_SENT


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_document_has_the_official_fields(name: str) -> None:
    official = pb.DESCRIPTOR.message_types_by_name[name]
    assert _fields(CLASSES[name].DESCRIPTOR) == _fields(official)


@pytest.mark.parametrize("name", ["DType", "StopReason"])
def test_document_has_the_official_enums(name: str) -> None:
    file = CLASSES["Tensor"].DESCRIPTOR.file
    ours, official = file.enum_types_by_name[name], pb.DESCRIPTOR.enum_types_by_name[name]
    assert [(v.name, v.number) for v in ours.values] == [
        (v.name, v.number) for v in official.values
    ]


def _bodies() -> list[tuple[str, bytes]]:
    parts = protobuf.encode_forward_backward_request(
        model_id="m",
        seq_id=2**31 - 1,
        data=[ours for ours, _ in DATA.values()],
        loss_fn="ppo",
        loss_fn_config={"a": 1.5, "b": "text"},
        forward_only=True,
    )
    bodies = [("ForwardBackwardRequest", b"".join(parts))]
    bodies += [
        ("ForwardBackwardOutput", protobuf.encode_forward_backward_output(output))
        for output in OUTPUTS
    ]
    bodies.append(("SampleResponse", protobuf.encode_sample_response(FULL)))
    return bodies


def test_codec_writes_what_the_document_describes() -> None:
    for name, body in _bodies():
        message = CLASSES[name]()
        message.ParseFromString(body)
        assert len(message.SerializeToString()) == len(body)
        message.DiscardUnknownFields()
        assert len(message.SerializeToString()) == len(body), f"{name} has undocumented fields"


DECODERS: dict[str, Callable[[bytes], object]] = {
    "ForwardBackwardRequest": protobuf.decode_forward_backward_request,
    "ForwardBackwardOutput": protobuf.decode_forward_backward_output,
    "SampleResponse": protobuf.decode_sample_response,
}


def _touch(message: Any) -> None:
    """Put an unknown field into a message and into every message in it."""
    message.from_the_future = "?"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            items = list(value.values())
        else:
            items = list(value) if field.is_repeated else [value]
        for item in items:
            if hasattr(item, "from_the_future"):
                _touch(item)


def test_fields_of_newer_peers_are_skipped_at_every_level() -> None:
    for name, body in _bodies():
        message = NEWER[name]()
        message.ParseFromString(body)
        _touch(message)
        newer = message.SerializeToString()
        assert len(newer) > len(body)
        assert repr(_sorted(DECODERS[name](newer))) == repr(_sorted(DECODERS[name](body)))


def _sorted(value: object) -> object:
    """A value with its mappings in one order."""
    if isinstance(value, msgspec.Struct):
        return [_sorted(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return sorted((key, repr(_sorted(item))) for key, item in value.items())
    return [_sorted(item) for item in value] if isinstance(value, list) else value
