"""Whatever bytes come, a decoder answers with a value or with its own typed error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.wire import strategies as s
from tinkex.errors import APIResponseValidationError, ClientError
from tinkex.types import Datum, ForwardBackwardOutput, SampleResponse
from tinkex.wire import legacy_json, protobuf

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
Decoder = Callable[[bytes], object]
DECODERS: dict[str, tuple[Decoder, type[Exception]]] = {
    "request": (protobuf.decode_forward_backward_request, ClientError),
    "output": (protobuf.decode_forward_backward_output, APIResponseValidationError),
    "sample": (protobuf.decode_sample_response, APIResponseValidationError),
    "legacy request": (legacy_json.decode_forward_backward_request, ClientError),
    "legacy output": (legacy_json.decode_forward_backward_output, APIResponseValidationError),
    "legacy sample": (legacy_json.decode_sample_response, APIResponseValidationError),
}


@pytest.mark.parametrize("name", DECODERS)
@FUZZ
@given(st.binary(max_size=80))
def test_arbitrary_bytes(name: str, body: bytes) -> None:
    decode, expected = DECODERS[name]
    with suppress(expected):
        decode(body)


def _damage(draw: st.DrawFn, body: bytes) -> bytes:
    """A body with a few bytes changed, cut out or put in."""
    raw = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        raw[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(raw)


@st.composite
def damaged_requests(draw: st.DrawFn) -> bytes:
    data: list[Datum] = draw(st.lists(s.DATUMS, max_size=2))
    parts = protobuf.encode_forward_backward_request(
        model_id="m",
        seq_id=1,
        data=data,
        loss_fn="ppo",
        loss_fn_config=draw(s.CONFIGS),
        forward_only=False,
    )
    return _damage(draw, b"".join(parts))


@st.composite
def damaged_outputs(draw: st.DrawFn) -> bytes:
    output: ForwardBackwardOutput = draw(s.outputs())
    return _damage(draw, protobuf.encode_forward_backward_output(output))


@st.composite
def damaged_samples(draw: st.DrawFn) -> bytes:
    response: SampleResponse = draw(s.RESPONSES)
    return _damage(draw, protobuf.encode_sample_response(response))


DAMAGED = {"request": damaged_requests(), "output": damaged_outputs(), "sample": damaged_samples()}


@pytest.mark.parametrize("name", DAMAGED)
@FUZZ
@given(data=st.data())
def test_damaged_bodies(name: str, data: st.DataObject) -> None:
    decode, expected = DECODERS[name]
    with suppress(expected):
        decode(data.draw(DAMAGED[name]))
