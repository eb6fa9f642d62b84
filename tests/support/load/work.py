"""The operations of a load: a few variants of each kind, prepared once, numbered when sent."""

from __future__ import annotations

import random

import msgspec

from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.types.requests import ForwardBackwardRequest, OptimStepRequest, SampleRequest
from tinkex.wire import json, protobuf

VARIANTS = 8
KINDS = ("pass", "step", "sample")
SHARES = (0.4, 0.2, 0.4)
BASE_MODEL = "null"

_TOKENS = 64


def training_tail(variant: int) -> bytes:
    """What follows model and number in the body of a forward_backward."""
    whole = _encoded("m", 1, variant)
    head = training_head(b"m", 1)
    assert whole.startswith(head)
    return whole[len(head) :]


def training_head(model_id: bytes, seq_id: int) -> bytes:
    """Model and number as they begin the body of a forward_backward."""
    return b"\x0a" + _varint(len(model_id)) + model_id + b"\x10" + _varint(seq_id)


def training_request(model_id: str, variant: int) -> ForwardBackwardRequest:
    """The same as the server reads it."""
    return protobuf.decode_forward_backward_request(_encoded(model_id, 1, variant))


def step_body(model_id: str, seq_id: int, variant: int) -> bytes:
    """The body of an optim_step."""
    rate = 0.001 * (1 + variant)
    return (
        f'{{"model_id":"{model_id}","seq_id":{seq_id},"adam_params":{{"learning_rate":{rate}}}}}'
    ).encode()


def step_request(model_id: str, variant: int) -> OptimStepRequest:
    """The same as the server reads it."""
    return json.decode_request(step_body(model_id, 1, variant), OptimStepRequest)


def sample_body(sampling_session_id: str, seq_id: int, variant: int) -> bytes:
    """The body of an asample."""
    tokens = ",".join(map(str, _tokens(variant, 16)))
    return (
        f'{{"sampling_session_id":"{sampling_session_id}","seq_id":{seq_id},"num_samples":1,'
        f'"prompt":{{"chunks":[{{"type":"encoded_text","tokens":[{tokens}]}}]}},'
        f'"sampling_params":{{"max_tokens":8,"seed":{variant}}}}}'
    ).encode()


def sample_request(variant: int) -> SampleRequest:
    """The same as the server reads it."""
    return json.decode_request(sample_body("any", 1, variant), SampleRequest)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One operation that was promised, and what it gave."""

    kind: str
    variant: int
    request_id: str
    checksum: int


class Records(msgspec.Struct):
    """All of them: by model and number, and the samples by session and number."""

    models: dict[str, dict[int, Record]] = {}
    samples: dict[str, dict[int, Record]] = {}


def _encoded(model_id: str, seq_id: int, variant: int) -> bytes:
    ids = _tokens(variant, _TOKENS + 1)
    inputs = {"target_tokens": ids[1:], "weights": [1.0] * _TOKENS}
    parts = protobuf.encode_forward_backward_request(
        model_id=model_id,
        seq_id=seq_id,
        data=[Datum(ModelInput.from_ints(ids[:-1]), inputs)],
        loss_fn="cross_entropy",
        loss_fn_config=None,
        forward_only=False,
    )
    return b"".join(parts)


def _tokens(variant: int, count: int) -> list[int]:
    dice = random.Random(variant)
    return [dice.randrange(1, 250) for _ in range(count)]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
