"""The JSON forms of training data and of results, spoken by clients before 0.25.

A server that supports them serves those clients too. Both directions are here, so that tests can
round-trip them. Nothing here is used between today's clients and servers: they speak protobuf.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from tinkex.errors import ValidationError
from tinkex.types.model_input import EncodedTextChunk
from tinkex.types.requests import Count, ForwardBackwardRequest
from tinkex.types.sampling import (
    SampledSequence,
    SampleResponse,
    StopReason,
    TopkLogprobs,
)
from tinkex.types.training import ForwardBackwardOutput
from tinkex.wire import json
from tinkex.wire._errors import invalid_body, invalid_response
from tinkex.wire._shapes import DatumShape, TensorShape
from tinkex.wire.limits import DEFAULT_LIMITS, Limits

T = TypeVar("T")
Pairs = list[list[tuple[int, float]] | None]


class _InputShape(msgspec.Struct):
    data: list[DatumShape]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class _ForwardBackwardShape(msgspec.Struct):
    model_id: str
    forward_backward_input: _InputShape | None = None
    forward_input: _InputShape | None = None
    seq_id: Count | None = None

    def build(self, limits: Limits) -> ForwardBackwardRequest:
        chosen = self.forward_backward_input or self.forward_input
        if chosen is None:
            raise ValidationError("neither forward_backward_input nor forward_input is there")
        if (count := len(chosen.data)) > limits.max_datums_per_request:
            raise ValidationError(
                f"data has {count} datums, above this server's limit of "
                f"{limits.max_datums_per_request}"
            )
        return ForwardBackwardRequest(
            model_id=self.model_id,
            seq_id=self.seq_id or 0,
            data=[datum.build(limits) for datum in chosen.data],
            loss_fn=chosen.loss_fn,
            loss_fn_config=chosen.loss_fn_config or {},
            forward_only=self.forward_backward_input is None,
        )


class _OutputShape(msgspec.Struct):
    loss_fn_output_type: str
    loss_fn_outputs: list[dict[str, TensorShape]]
    metrics: dict[str, float] = {}

    def build(self) -> ForwardBackwardOutput:
        return ForwardBackwardOutput(
            loss_fn_output_type=self.loss_fn_output_type,
            loss_fn_outputs=[
                {name: tensor.build() for name, tensor in output.items()}
                for output in self.loss_fn_outputs
            ],
            metrics=self.metrics,
        )


class _SequenceShape(msgspec.Struct, omit_defaults=True):
    stop_reason: StopReason
    tokens: list[int]
    logprobs: list[float] | None = None
    topk_logprobs: Pairs | None = None

    def build(self, sequence_id: str) -> SampledSequence:
        return SampledSequence(
            stop_reason=self.stop_reason,
            sequence_id=sequence_id,
            tokens_raw=EncodedTextChunk(self.tokens).raw,
            logprobs_raw=_floats(self.logprobs),
            topk=_pack_topk(self.topk_logprobs),
        )


class _SampleShape(msgspec.Struct):
    type: Literal["sample"] = "sample"
    sequences: list[_SequenceShape] = []
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: Pairs | None = None
    prompt_cache_hit_tokens: int = 0

    def build(self) -> SampleResponse:
        return SampleResponse(
            sequences=[sequence.build("") for sequence in self.sequences],
            prompt_logprobs_raw=_floats(self.prompt_logprobs),
            topk_prompt=_pack_topk(self.topk_prompt_logprobs),
            prompt_cache_hit_tokens=self.prompt_cache_hit_tokens,
        )


_REQUEST = msgspec.json.Decoder(_ForwardBackwardShape)
_OUTPUT = msgspec.json.Decoder(_OutputShape)
_SAMPLE = msgspec.json.Decoder(_SampleShape)


def decode_forward_backward_request(
    body: bytes, *, limits: Limits = DEFAULT_LIMITS
) -> ForwardBackwardRequest:
    """Decodes the training request in the JSON body of `/forward_backward` or `/forward`.

    Raises:
        ClientError: the body is invalid (status 422, code "invalid-body").
    """
    json.check_shape(body, limits)
    try:
        return _REQUEST.decode(body).build(limits)
    except json.BAD_INPUT as error:
        raise invalid_body(json.reason(error), json.field_path(error)) from error


def encode_forward_backward_request(request: ForwardBackwardRequest) -> bytes:
    """Returns the JSON body that older clients send for a training request."""
    data = [
        {"model_input": datum.model_input, "loss_fn_inputs": datum.loss_fn_inputs}
        for datum in request.data
    ]
    inner: dict[str, Any] = {"data": data, "loss_fn": request.loss_fn}
    if request.loss_fn_config:
        inner["loss_fn_config"] = request.loss_fn_config
    key = "forward_input" if request.forward_only else "forward_backward_input"
    return json.encode({key: inner, "model_id": request.model_id, "seq_id": request.seq_id})


def encode_forward_backward_output(output: ForwardBackwardOutput) -> bytes:
    """Returns the JSON result of a training request."""
    return json.encode(output)


def decode_forward_backward_output(body: bytes) -> ForwardBackwardOutput:
    """Decodes the training result in a JSON body.

    Raises:
        APIResponseValidationError: the body is invalid.
    """
    return _read(lambda: _OUTPUT.decode(body).build(), "ForwardBackwardOutput")


def encode_sample_response(response: SampleResponse) -> bytes:
    """Returns the JSON result of a sampling request; fields that older clients do not know
    are left out."""
    shape = _SampleShape(
        sequences=[_sequence_shape(sequence) for sequence in response.sequences],
        prompt_logprobs=response.prompt_logprobs,
        topk_prompt_logprobs=response.topk_prompt_logprobs,
        prompt_cache_hit_tokens=response.prompt_cache_hit_tokens,
    )
    return json.encode(shape)


def decode_sample_response(body: bytes) -> SampleResponse:
    """Decodes the sampling result in a JSON body.

    Raises:
        APIResponseValidationError: the body is invalid.
    """
    return _read(lambda: _SAMPLE.decode(body).build(), "SampleResponse")


def _read(read: Callable[[], T], name: str) -> T:
    try:
        return read()
    except json.BAD_INPUT as error:
        raise invalid_response(name, json.reason(error), json.field_path(error)) from error


def _sequence_shape(sequence: SampledSequence) -> _SequenceShape:
    return _SequenceShape(
        stop_reason=sequence.stop_reason,
        tokens=sequence.tokens,
        logprobs=sequence.logprobs,
        topk_logprobs=sequence.topk_logprobs,
    )


def _floats(values: list[float] | list[float | None] | None) -> bytes | None:
    if not values:
        return None
    return array("f", [math.nan if value is None else value for value in values]).tobytes()


def _pack_topk(rows: Pairs | None) -> TopkLogprobs | None:
    """Returns ragged rows as a rectangle, empty cells filled."""
    width = max((len(row or ()) for row in rows or ()), default=0)
    if not rows or not width:
        return None
    return TopkLogprobs.from_rows(rows)
