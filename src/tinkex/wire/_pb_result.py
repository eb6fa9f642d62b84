"""`ForwardBackwardOutput` and `SampleResponse` in protobuf, both ways.

Results are decoded without the request: the caller checks whether they match it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from tinkex.errors import ValidationError
from tinkex.types.sampling import (
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    StopReason,
    TopkLogprobs,
)
from tinkex.types.tensor import TensorData
from tinkex.types.training import ForwardBackwardOutput, LossFnOutput
from tinkex.wire._errors import Malformed, invalid_response
from tinkex.wire._tensors import (
    decode_batched,
    decode_tensor,
    encode_batched,
    encode_tensor,
)
from tinkex.wire._varint import (
    INT64_MAX,
    delimited,
    double,
    fields,
    map_entry,
    number,
    text,
    to_double,
    to_int32,
    to_text,
)

T = TypeVar("T")

_MAX_DATUMS = 1 << 20
"""Maximum datums that a result may claim; a claim alone costs nothing, allocating for it does."""

_STOP_REASONS: list[StopReason] = ["stop", "length"]


def encode_forward_backward_output(output: ForwardBackwardOutput) -> bytes:
    """Returns the body of a training result.

    Neighbours with the same fields, dtypes and trailing shapes share a record; sparse tensors are
    made dense.
    """
    parts = [text(0x0A, output.loss_fn_output_type)]
    for _, group in groupby(output.loss_fn_outputs, key=_layout):
        parts.append(delimited(0x12, _encode_record(output.loss_fn_output_type, list(group))))
    for name, value in output.metrics.items():
        parts.append(delimited(0x1A, delimited(0x0A, name.encode()) + double(0x11, value)))
    return b"".join(parts)


def _layout(item: LossFnOutput) -> list[tuple[str, str, list[int]]]:
    return [(name, t.dtype, t.shape[1:] if t.shape else []) for name, t in item.items()]


def _encode_record(type_tag: str, items: list[LossFnOutput]) -> bytes:
    parts = [text(0x0A, type_tag)]
    for name in items[0]:
        value = encode_batched([item[name] for item in items])
        parts.append(delimited(0x12, delimited(0x0A, name.encode()) + delimited(0x12, value)))
    parts.append(number(0x18, len(items)))
    return b"".join(parts)


def decode_forward_backward_output(body: bytes) -> ForwardBackwardOutput:
    """Decodes the training result in a body.

    Raises:
        APIResponseValidationError: the body is invalid.
    """
    return _read(lambda: _decode_output(body), "ForwardBackwardOutput")


def _read(read: Callable[[], T], name: str) -> T:
    try:
        return read()
    except Malformed as error:
        raise invalid_response(name, str(error)) from error
    except ValidationError as error:
        raise invalid_response(name, error.message.rstrip(".")) from error


def _decode_output(body: bytes) -> ForwardBackwardOutput:
    kind = ""
    outputs: list[LossFnOutput] = []
    metrics: dict[str, float] = {}
    for key, a, b in fields(body, 0, len(body)):
        if key == 0x0A:
            kind = to_text(body, a, b)
        elif key == 0x12:
            outputs += _decode_record(body, a, b)
        elif key == 0x1A:
            name, value = map_entry(body, a, b, 0x11)
            metrics[name] = to_double(body, *value)
    return ForwardBackwardOutput(
        loss_fn_output_type=kind.rpartition(":")[2] or "ArrayRecord",
        loss_fn_outputs=outputs,
        metrics=metrics,
    )


def _decode_record(body: bytes, at: int, end: int) -> list[LossFnOutput]:
    """Returns one output per datum. The record's own count wins over that of its fields."""
    columns: dict[str, list[TensorData]] = {}
    count = 0
    for key, a, b in fields(body, at, end):
        if key == 0x12:
            name, value = map_entry(body, a, b, 0x12)
            columns[name] = decode_batched(body, *value)
        elif key == 0x18:
            count = a
    shortest = min(map(len, columns.values()), default=count)
    count = count or shortest
    if count > min(shortest, _MAX_DATUMS):
        raise Malformed(f"a record of {count} datums has only {shortest} in one of its fields")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def encode_sample_response(response: SampleResponse) -> bytes:
    """Returns the body of a sampling result."""
    parts = [delimited(0x0A, _encode_sequence(item)) for item in response.sequences]
    if response.prompt_logprobs_raw is not None:
        parts.append(delimited(0x12, response.prompt_logprobs_raw))
    parts.append(_encode_topk(0x1A, response.topk_prompt))
    parts.append(number(0x20, response.prompt_cache_hit_tokens))
    if response.target_prompt_logprobs is not None:
        parts.append(_encode_tensor(0x2A, response.target_prompt_logprobs))
    if response.prompt_alt_tokens is not None:
        alt = response.prompt_alt_tokens
        both = _encode_tensor(0x0A, alt.tokens) + _encode_tensor(0x12, alt.logprobs)
        parts.append(delimited(0x32, both))
    return b"".join(parts)


def _encode_tensor(key: int, tensor: TensorData) -> bytes:
    return delimited(key, b"".join(encode_tensor(tensor)))


def _encode_sequence(sequence: SampledSequence) -> bytes:
    parts = [number(0x08, _STOP_REASONS.index(sequence.stop_reason))]
    if sequence.tokens_raw:
        parts.append(delimited(0x12, sequence.tokens_raw))
    if sequence.logprobs_raw is not None:
        parts.append(delimited(0x1A, sequence.logprobs_raw))
    parts.append(_encode_topk(0x22, sequence.topk))
    return b"".join(parts)


def _encode_topk(key: int, topk: TopkLogprobs | None) -> bytes:
    if topk is None:
        return b""
    ids = delimited(0x0A, topk.token_ids_raw) if topk.token_ids_raw else b""
    logprobs = delimited(0x12, topk.logprobs_raw) if topk.logprobs_raw else b""
    return delimited(key, ids + logprobs + number(0x18, topk.k) + number(0x20, topk.length))


def decode_sample_response(body: bytes, sequence_ids: Sequence[str] = ()) -> SampleResponse:
    """Decodes the sampling result in a body; the sequences' ids come from the promise.

    Raises:
        APIResponseValidationError: the body is invalid, or has another number of sequences.
    """
    return _read(lambda: _decode_response(body, sequence_ids), "SampleResponse")


def _decode_response(body: bytes, ids: Sequence[str]) -> SampleResponse:
    sequences: list[tuple[int, int]] = []
    prompt_logprobs, hits, target, alt, topk = None, 0, None, None, None
    for key, a, b in fields(body, 0, len(body)):
        if key == 0x0A:
            sequences.append((a, b))
        elif key == 0x12:
            prompt_logprobs = _whole(body[a:b]) or None
        elif key == 0x1A:
            topk = _decode_topk(body, a, b)
        elif key == 0x20:
            hits = to_int32(a)
        elif key == 0x2A:
            target = decode_tensor(body, a, b, INT64_MAX)
        elif key == 0x32:
            alt = _decode_alt(body, a, b)
    if ids and len(ids) != len(sequences):
        raise Malformed(f"{len(ids)} sequences were promised and {len(sequences)} came")
    return SampleResponse(
        sequences=[
            _decode_sequence(body, *span, ids[i] if ids else "") for i, span in enumerate(sequences)
        ],
        prompt_logprobs_raw=prompt_logprobs,
        topk_prompt=topk,
        prompt_cache_hit_tokens=hits,
        target_prompt_logprobs=target,
        prompt_alt_tokens=alt,
    )


def _whole(raw: bytes) -> bytes:
    """Returns bytes that are checked to be a whole number of four-byte values."""
    if len(raw) % 4:
        raise Malformed(f"{len(raw)} bytes are no whole number of four-byte values")
    return raw


def _decode_sequence(body: bytes, at: int, end: int, sequence_id: str) -> SampledSequence:
    reason, tokens, logprobs, topk = 0, b"", None, None
    for key, a, b in fields(body, at, end):
        if key == 0x12:
            tokens = _whole(body[a:b])
        elif key == 0x1A:
            logprobs = _whole(body[a:b]) or None
        elif key == 0x22:
            topk = _decode_topk(body, a, b)
        elif key == 0x08:
            reason = a
    if reason >= len(_STOP_REASONS):
        raise Malformed(f"stop reason {reason} is not known")
    return SampledSequence(
        stop_reason=_STOP_REASONS[reason],
        sequence_id=sequence_id,
        tokens_raw=tokens,
        logprobs_raw=logprobs,
        topk=topk,
    )


def _decode_topk(body: bytes, at: int, end: int) -> TopkLogprobs | None:
    ids, logprobs, k, length = b"", b"", 0, 0
    for key, a, b in fields(body, at, end):
        if key == 0x0A:
            ids = body[a:b]
        elif key == 0x12:
            logprobs = body[a:b]
        elif key == 0x18:
            k = a
        elif key == 0x20:
            length = a
    if not k or not length:
        return None
    if len(ids) != 4 * k * length or len(logprobs) != len(ids):
        raise Malformed(f"top-k values do not fill {length} rows of {k}")
    return TopkLogprobs(token_ids_raw=ids, logprobs_raw=logprobs, k=k, length=length)


def _decode_alt(body: bytes, at: int, end: int) -> PromptAltTokens:
    found: dict[int, TensorData] = {}
    for key, a, b in fields(body, at, end):
        if key in (0x0A, 0x12):
            found[key] = decode_tensor(body, a, b, INT64_MAX)
    if len(found) != 2:
        raise Malformed("alternative tokens lack their tokens or their logprobs")
    return PromptAltTokens(tokens=found[0x0A], logprobs=found[0x12])
