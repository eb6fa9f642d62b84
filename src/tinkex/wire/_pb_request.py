"""`ForwardBackwardRequest` in protobuf, both ways.

A request is written as parts whose concatenation is the body. Big buffers are the user's own, so a
queued request costs no memory beyond its data; the datums, the expensive part, can be written
before the request's number is known.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tinkex.errors import ValidationError
from tinkex.types.datum import (
    Datum,
    PromptProvenanceSpan,
    ProvenanceSpans,
    SampledProvenanceSpan,
)
from tinkex.types.model_input import (
    DmelChunk,
    EncodedTextChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
)
from tinkex.types.requests import ForwardBackwardRequest
from tinkex.types.tensor import TensorData
from tinkex.wire._errors import Malformed, invalid_body
from tinkex.wire._tensors import decode_tensor, encode_tensor
from tinkex.wire._varint import (
    INT32_MAX,
    FieldBudget,
    delimited,
    double,
    fields,
    map_entry,
    number,
    signed,
    text,
    to_double,
    to_int32,
    to_int64,
    to_text,
    varint,
)
from tinkex.wire.limits import DEFAULT_LIMITS, Limits

_COPY_BELOW_BYTES = 512
"""Buffers smaller than this are joined with their neighbours: a part costs more than the copy."""

Span = PromptProvenanceSpan | SampledProvenanceSpan


def encode_forward_backward_request(
    *,
    model_id: str,
    seq_id: int,
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None,
    forward_only: bool,
) -> list[bytes]:
    """Returns the parts of a training request's body.

    Raises:
        ValidationError: an input cannot be trained on, or a value is out of range.
    """
    return frame_forward_backward_request(
        encode_datums(data),
        model_id=model_id,
        seq_id=seq_id,
        loss_fn=loss_fn,
        loss_fn_config=loss_fn_config,
        forward_only=forward_only,
    )


def frame_forward_backward_request(
    datums: Sequence[bytes],
    *,
    model_id: str,
    seq_id: int,
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None,
    forward_only: bool,
) -> list[bytes]:
    """Returns the parts of a training request's body, around datums that `encode_datums` wrote.

    Raises:
        ValidationError: a value is out of range.
    """
    if not 0 <= seq_id <= INT32_MAX:
        raise ValidationError(f"seq_id={seq_id} does not fit a request; it may have 31 bits.")
    head = text(0x0A, model_id) + number(0x10, seq_id)
    tail = text(0x22, loss_fn) + _encode_config(loss_fn_config or {}, forward_only)
    return [head, *datums, tail]


def encode_datums(data: Iterable[Datum]) -> list[bytes]:
    """Returns the parts of a request that hold its datums.

    Raises:
        ValidationError: an input cannot be trained on (an image pointer).
    """
    parts: list[bytes] = []
    for datum in data:
        _add_datum(parts, datum)
    return _join_small(parts)


def _encode_config(config: Mapping[str, float | str], forward_only: bool) -> bytes:
    """Encodes the config: numbers go into both maps, text into the newer one alone."""
    old, new = bytearray(), bytearray()
    for name, value in config.items():
        key = delimited(0x0A, name.encode())
        if isinstance(value, str):
            new += delimited(0x3A, key + delimited(0x12, delimited(0x12, value.encode())))
        else:
            old += delimited(0x2A, key + double(0x11, value))
            new += delimited(0x3A, key + delimited(0x12, double(0x09, value)))
    return bytes(old) + number(0x30, forward_only) + bytes(new)


def _join_small(parts: list[bytes]) -> list[bytes]:
    joined: list[bytes] = []
    first = 0
    for at, part in enumerate(parts):
        if len(part) >= _COPY_BELOW_BYTES:
            joined += (b"".join(parts[first:at]), part)
            first = at + 1
    if first < len(parts):
        joined.append(b"".join(parts[first:]))
    return joined


def _add_datum(parts: list[bytes], datum: Datum) -> None:
    """Adds a datum's parts; the lengths before them are counted, and values are not copied."""
    place = len(parts)
    parts.append(b"")
    for chunk in datum.model_input.chunks:
        _add_chunk(parts, chunk)
    for name, tensor in datum.loss_fn_inputs.items():
        _add_input(parts, name, tensor)
    parts += _encode_spans(0x1A, datum.model_input_spans)
    parts += _encode_spans(0x22, datum.loss_fn_input_spans)
    parts[place] = b"\x1a" + varint(sum(map(len, parts[place:])))


def _add_input(parts: list[bytes], name: str, tensor: TensorData) -> None:
    head, values, tail = encode_tensor(tensor)
    size = len(head) + len(values) + len(tail)
    entry = _encode_name(name) + b"\x12" + varint(size) + head
    parts += (b"\x12" + varint(len(entry) + len(values) + len(tail)) + entry, values, tail)


@functools.lru_cache(maxsize=64)
def _encode_name(name: str) -> bytes:
    return delimited(0x0A, name.encode())


def _add_chunk(parts: list[bytes], chunk: ModelInputChunk) -> None:
    if isinstance(chunk, EncodedTextChunk):
        return _add_content(parts, b"\x0a", chunk.raw, b"")
    if isinstance(chunk, DmelChunk):
        return _add_content(parts, b"\x1a", chunk.dmel, b"")
    if isinstance(chunk, ImageChunk):
        tail = text(0x12, chunk.format)
        if chunk.expected_tokens is not None:
            tail += b"\x18" + signed(chunk.expected_tokens)
        return _add_content(parts, b"\x12", chunk.data, tail)
    raise ValidationError(
        f"A {type(chunk).__name__} can be sampled from but not trained on.",
        hint="Put the image itself into an ImageChunk.",
    )


def _add_content(parts: list[bytes], kind: bytes, raw: bytes, tail: bytes) -> None:
    """Adds a chunk of one kind: its bytes as field 1, then its other fields."""
    field = b"\x0a" + varint(len(raw)) if raw else b""
    inner = kind + varint(len(field) + len(raw) + len(tail)) + field
    outer = b"\x0a" + varint(len(inner) + len(raw) + len(tail))
    parts += (outer + inner, raw, tail)


def _encode_spans(key: int, spans: ProvenanceSpans | None) -> list[bytes]:
    return [delimited(key, _encode_span(span)) for span in spans or ()]


def _encode_span(span: Span) -> bytes:
    content = text(0x0A, span.sequence_id) + number(0x10, span.offset) + number(0x18, span.length)
    return delimited(0x12 if isinstance(span, SampledProvenanceSpan) else 0x0A, content)


def decode_forward_backward_request(
    body: bytes, *, limits: Limits = DEFAULT_LIMITS
) -> ForwardBackwardRequest:
    """Decodes the training request in a body, for a server.

    Raises:
        ClientError: the body is invalid (status 422, code "invalid-body"), or is above `limits`.
    """
    try:
        return _Reader(body, limits).request()
    except Malformed as error:
        raise invalid_body(str(error)) from error


def peek_target(head: bytes) -> tuple[str | None, int | None]:
    """Returns the model id and the sequence number of a training request, as far as present.

    For a server that refuses the request. Every known encoder writes them first.
    """
    model_id, seq_id = None, None
    try:
        for key, a, b in fields(head, 0, len(head)):
            if key == 0x0A:
                model_id = to_text(head, a, b)
            elif key == 0x10:
                seq_id = to_int32(a)
            if model_id is not None and seq_id is not None:
                break
    except Malformed:
        pass
    return model_id, seq_id


class _Reader:
    """Reads one body. Nested messages are spans of it, so only values are copied out."""

    def __init__(self, body: bytes, limits: Limits) -> None:
        self.body = body
        self.limits = limits
        self.budget = FieldBudget(limits.max_protobuf_fields)

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        return fields(self.body, at, end, self.budget)

    def request(self) -> ForwardBackwardRequest:
        model_id, loss_fn, seq_id, forward_only = "", "", 0, False
        data: list[Datum] = []
        old: dict[str, float | str] = {}
        new: dict[str, float | str] = {}
        for key, a, b in self.fields(0, len(self.body)):
            if key == 0x1A:
                data.append(self.numbered_datum(len(data), a, b))
            elif key == 0x0A:
                model_id = to_text(self.body, a, b)
            elif key == 0x10:
                seq_id = to_int32(a)
            elif key == 0x22:
                loss_fn = to_text(self.body, a, b)
            elif key == 0x2A:
                self.old_setting(old, a, b)
            elif key == 0x30:
                forward_only = a != 0
            elif key == 0x3A:
                self.new_setting(new, a, b)
        return ForwardBackwardRequest(
            model_id=model_id,
            seq_id=seq_id,
            data=data,
            loss_fn=loss_fn,
            loss_fn_config=old | new,
            forward_only=forward_only,
        )

    def numbered_datum(self, index: int, at: int, end: int) -> Datum:
        """Returns a datum; errors name its index in the message."""
        if index >= self.limits.max_datums_per_request:
            raise Malformed(
                f"data has more datums than this server's limit of "
                f"{self.limits.max_datums_per_request}"
            )
        try:
            return self.datum(at, end)
        except Malformed as error:
            raise Malformed(f"data[{index}]: {error}") from error
        except ValidationError as error:
            raise Malformed(f"data[{index}]: {error.message.rstrip('.')}") from error

    def datum(self, at: int, end: int) -> Datum:
        chunks: list[ModelInputChunk] = []
        inputs: dict[str, TensorData] = {}
        input_spans: list[Span] = []
        loss_spans: list[Span] = []
        for key, a, b in self.fields(at, end):
            if key == 0x0A:
                chunks.append(self.chunk(a, b))
                if len(chunks) > self.limits.max_chunks_per_input:
                    raise Malformed(
                        f"model_input has more chunks than this server's limit of "
                        f"{self.limits.max_chunks_per_input}"
                    )
            elif key == 0x12:
                self.tensor_entry(inputs, a, b)
            elif key == 0x1A:
                input_spans.append(self.span(a, b))
            elif key == 0x22:
                loss_spans.append(self.span(a, b))
        return Datum(ModelInput(chunks=chunks), inputs, input_spans or None, loss_spans or None)

    def tensor_entry(self, inputs: dict[str, TensorData], at: int, end: int) -> None:
        name, value = map_entry(self.body, at, end, 0x12, self.budget)
        try:
            inputs[name] = decode_tensor(
                self.body, *value, self.limits.max_tensor_values, self.budget
            )
        except Malformed as error:
            raise Malformed(f"loss_fn_inputs[{name!r:.80}]: {error}") from error

    def old_setting(self, config: dict[str, float | str], at: int, end: int) -> None:
        name, value = map_entry(self.body, at, end, 0x11, self.budget)
        config[name] = to_double(self.body, *value)

    def new_setting(self, config: dict[str, float | str], at: int, end: int) -> None:
        name, value = map_entry(self.body, at, end, 0x12, self.budget)
        for key, a, b in self.fields(*value):
            if key == 0x09:
                config[name] = to_double(self.body, a, b)
            elif key == 0x12:
                config[name] = to_text(self.body, a, b)

    def chunk(self, at: int, end: int) -> ModelInputChunk:
        found: ModelInputChunk | None = None
        for key, a, b in self.fields(at, end):
            if key == 0x0A:
                found = EncodedTextChunk.from_bytes(self.first_bytes(a, b))
            elif key == 0x12:
                found = self.image(a, b)
            elif key == 0x1A:
                found = DmelChunk(dmel=self.first_bytes(a, b))
        if found is None:
            raise Malformed("a chunk of the model input is neither text, image nor dmel")
        return found

    def first_bytes(self, at: int, end: int) -> bytes:
        """Returns field 1 of a message that has no other fields."""
        raw = b""
        for key, a, b in self.fields(at, end):
            if key == 0x0A:
                raw = self.body[a:b]
        return raw

    def image(self, at: int, end: int) -> ImageChunk:
        data, kind, expected = b"", "", None
        for key, a, b in self.fields(at, end):
            if key == 0x0A:
                data = self.body[a:b]
            elif key == 0x12:
                kind = to_text(self.body, a, b)
            elif key == 0x18:
                expected = to_int32(a)
        return ImageChunk(data=data, format=kind, expected_tokens=expected)  # type: ignore[arg-type]

    def span(self, at: int, end: int) -> Span:
        for key, a, b in self.fields(at, end):
            if key in (0x0A, 0x12):
                return self.span_content(key == 0x12, a, b)
        raise Malformed("a provenance span says neither prompt nor sampled")

    def span_content(self, is_sampled: bool, at: int, end: int) -> Span:
        sequence_id, offset, length = "", 0, 0
        for key, a, b in self.fields(at, end):
            if key == 0x0A:
                sequence_id = to_text(self.body, a, b)
            elif key == 0x10:
                offset = to_int64(a)
            elif key == 0x18:
                length = to_int64(a)
        kind = SampledProvenanceSpan if is_sampled else PromptProvenanceSpan
        return kind(sequence_id=sequence_id, offset=offset, length=length)
