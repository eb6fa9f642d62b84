"""`tinker_public.proto` describes what the official client speaks and what our codec writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.wire import proto_text
from tests.unit.wire.official_calls import DATA
from tests.unit.wire.test_wire_official_answers import FULL, OUTPUTS
from tinker.proto import tinker_public_pb2 as pb

import tinkex.wire
from tinkex.wire import protobuf

DOCUMENT = Path(tinkex.wire.__file__).with_name("tinker_public.proto")
CLASSES = proto_text.load(DOCUMENT, "documented")
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


def test_codec_writes_what_the_document_describes() -> None:
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
    for name, body in bodies:
        message = CLASSES[name]()
        message.ParseFromString(body)
        assert len(message.SerializeToString()) == len(body)
        message.DiscardUnknownFields()
        assert len(message.SerializeToString()) == len(body), f"{name} has undocumented fields"
