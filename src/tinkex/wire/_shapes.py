"""JSON forms that cannot be read straight into their types.

A token chunk and a tensor keep bytes where JSON has lists, and a chunk names its class in a field;
so bodies that hold them are read into these structs first and then built. Knows nothing of who
sent them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._tensor_values import holds_fractions
from tinkex.types.datum import Datum
from tinkex.types.model_input import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ImageFormat,
    ModelInput,
    ModelInputChunk,
)
from tinkex.types.requests import SampleRequest
from tinkex.types.telemetry import (
    GenericEvent,
    SessionEndEvent,
    SessionStartEvent,
    TelemetryEvent,
    TelemetrySendRequest,
    UnhandledExceptionEvent,
)
from tinkex.types.tensor import TensorData, TensorDtype
from tinkex.wire._tensors import MAX_RANK
from tinkex.wire.limits import DEFAULT_LIMITS, Limits


class TensorShape(msgspec.Struct, omit_defaults=True):
    """`{"data":[…],"dtype":…,"shape"?,"sparse_crow_indices"?,"sparse_col_indices"?}`"""

    data: list[int | float | None]
    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None

    def build(self, limits: Limits = DEFAULT_LIMITS) -> TensorData:
        """Builds the tensor; null stands for NaN, which JSON cannot write."""
        check_tensor_shape(self.shape or (), limits)
        if self.dtype == "int64" and holds_fractions(self.data):
            raise ValidationError("A tensor of int64 holds fractions.")
        return TensorData(
            self.data, self.dtype, self.shape, self.sparse_crow_indices, self.sparse_col_indices
        )

    @classmethod
    def of(cls, tensor: TensorData) -> TensorShape:
        """Returns the shape of a tensor; absent fields are left out."""
        return cls(
            tensor.data,
            tensor.dtype,
            tensor.shape,
            tensor.sparse_crow_indices,
            tensor.sparse_col_indices,
        )


def check_tensor_shape(shape: Sequence[int], limits: Limits) -> None:
    """Refuses a tensor that would be too big once it is dense, or has too many dimensions.

    Raises:
        ValidationError: the tensor would be too big, or has too many dimensions.
    """
    if len(shape) > MAX_RANK:
        raise ValidationError(f"a tensor has {len(shape)} dimensions, above the {MAX_RANK} allowed")
    if (values := math.prod(shape)) > limits.max_tensor_values:
        raise ValidationError(
            f"a tensor of shape {list(shape)} has {values} values, above this server's limit of "
            f"{limits.max_tensor_values}"
        )


class _TextShape(msgspec.Struct, tag_field="type", tag="encoded_text"):
    tokens: list[int]

    def build(self) -> ModelInputChunk:
        return EncodedTextChunk(self.tokens)


class _ImageShape(msgspec.Struct, tag_field="type", tag="image"):
    data: bytes
    format: ImageFormat
    expected_tokens: int | None = None

    def build(self) -> ModelInputChunk:
        return ImageChunk(data=self.data, format=self.format, expected_tokens=self.expected_tokens)


class _PointerShape(msgspec.Struct, tag_field="type", tag="image_asset_pointer"):
    format: ImageFormat
    location: str
    expected_tokens: int | None = None

    def build(self) -> ModelInputChunk:
        return ImageAssetPointerChunk(
            format=self.format, location=self.location, expected_tokens=self.expected_tokens
        )


class _DmelShape(msgspec.Struct, tag_field="type", tag="dmel"):
    dmel: bytes

    def build(self) -> ModelInputChunk:
        return DmelChunk(dmel=self.dmel)


class ModelInputShape(msgspec.Struct):
    """`{"chunks":[…]}`"""

    chunks: list[_TextShape | _ImageShape | _PointerShape | _DmelShape]

    def build(self, limits: Limits = DEFAULT_LIMITS) -> ModelInput:
        """Builds the model input."""
        if len(self.chunks) > limits.max_chunks_per_input:
            raise ValidationError(
                f"a model input has {len(self.chunks)} chunks, above this server's limit of "
                f"{limits.max_chunks_per_input}"
            )
        return ModelInput(chunks=[chunk.build() for chunk in self.chunks])


class DatumShape(msgspec.Struct):
    """`{"model_input":…,"loss_fn_inputs":{name:tensor}}`"""

    model_input: ModelInputShape
    loss_fn_inputs: dict[str, TensorShape] = {}

    def build(self, limits: Limits = DEFAULT_LIMITS) -> Datum:
        """Builds the datum."""
        inputs = {name: tensor.build(limits) for name, tensor in self.loss_fn_inputs.items()}
        return Datum(self.model_input.build(limits), inputs)


class SampleRequestShape(SampleRequest, frozen=True, kw_only=True):
    """A sampling request as read."""

    prompt: ModelInputShape  # type: ignore[assignment]
    target_prompt_logprobs: TensorShape | None = None  # type: ignore[assignment]

    def build(self, limits: Limits = DEFAULT_LIMITS) -> SampleRequest:
        """Builds the sampling request."""
        values = _fields_of(self, SampleRequest)
        values["prompt"] = self.prompt.build(limits)
        if self.target_prompt_logprobs is not None:
            values["target_prompt_logprobs"] = self.target_prompt_logprobs.build(limits)
        return SampleRequest(**values)


class TelemetryShape(TelemetrySendRequest, frozen=True, kw_only=True):
    """A telemetry batch as read: each event says which it is in a field of its own."""

    events: list[dict[str, Any]]  # type: ignore[assignment]

    def build(self, _limits: Limits = DEFAULT_LIMITS) -> TelemetrySendRequest:
        """Builds the telemetry batch."""
        values = _fields_of(self, TelemetrySendRequest)
        values["events"] = [_build_event(event) for event in self.events]
        return TelemetrySendRequest(**values)


_EVENTS: dict[object, type[TelemetryEvent]] = {
    "SESSION_START": SessionStartEvent,
    "SESSION_END": SessionEndEvent,
    "UNHANDLED_EXCEPTION": UnhandledExceptionEvent,
    "GENERIC_EVENT": GenericEvent,
}


def _build_event(event: dict[str, Any]) -> TelemetryEvent:
    name = event.get("event")
    if not isinstance(name, str) or name not in _EVENTS:
        raise ValidationError(f"no telemetry event is called {name!r:.80}")
    return msgspec.convert(event, _EVENTS[name])


def _fields_of(value: msgspec.Struct, type_: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type_.__struct_fields__}
