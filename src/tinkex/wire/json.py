"""JSON bodies: requests and answers that are not protobuf.

`decode` is the client's reader and blames the server; `decode_request` is the server's and blames
the client. Both ignore fields they do not know, except among sampling parameters, where an unknown
one would change results unnoticed. Old JSON forms of training data and results: `legacy_json`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from tinkex.errors import ValidationError
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.types.requests import SampleRequest
from tinkex.types.telemetry import TelemetrySendRequest
from tinkex.types.tensor import TensorData
from tinkex.wire._errors import invalid_body, invalid_response
from tinkex.wire._shapes import (
    DatumShape,
    ModelInputShape,
    SampleRequestShape,
    TelemetryShape,
    TensorShape,
)
from tinkex.wire.limits import DEFAULT_LIMITS, Limits

T = TypeVar("T")

_SHAPES: dict[Any, type[Any]] = {
    Datum: DatumShape,
    ModelInput: ModelInputShape,
    SampleRequest: SampleRequestShape,
    TelemetrySendRequest: TelemetryShape,
    TensorData: TensorShape,
}
BAD_INPUT = (msgspec.DecodeError, ValidationError, RecursionError, UnicodeDecodeError)


def encode(value: object) -> bytes:
    """Returns the compact JSON form of a value of the protocol.

    Raises:
        ValidationError: something in it, most likely user metadata, has no JSON form.
    """
    try:
        return _ENCODER.encode(_with_short_tensors(value))
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise ValidationError(
            f"{type(value).__name__} cannot be written as JSON: {error}.",
            hint="Use strings, numbers, booleans, None, and lists and dicts of them.",
        ) from error


def decode(body: bytes, type_: type[T]) -> T:
    """Decodes the value in a response body.

    Raises:
        APIResponseValidationError: it is not of this type; the message names the field.
    """
    try:
        return cast(T, _reader(cast(Any, type_))(body, DEFAULT_LIMITS))
    except BAD_INPUT as error:
        raise invalid_response(_name(type_), reason(error), field_path(error)) from error


def decode_request(body: bytes, type_: type[T], *, limits: Limits = DEFAULT_LIMITS) -> T:
    """Decodes the request in a body, for a server.

    Raises:
        ClientError: it is not of this type (status 422, code "invalid-body", `field`).
    """
    check_shape(body, limits)
    try:
        return cast(T, _reader(cast(Any, type_))(body, limits))
    except BAD_INPUT as error:
        raise invalid_body(reason(error), field_path(error)) from error


def check_shape(body: bytes, limits: Limits) -> None:
    """Refuse JSON that would take long to read for its size: too many keys, or nested too deep.

    A decoder cannot be interrupted, and keys cost far more than the numbers that data consists of.
    Colons are counted in their place, so one inside a text counts as well.

    Raises:
        ClientError: it has too many, or is nested deeper.
    """
    if body.count(b":") > limits.max_json_keys:
        raise invalid_body(f"it has more than {limits.max_json_keys} keys")
    _check_depth(body, limits.max_json_depth)


def _check_depth(body: bytes, limit: int) -> None:
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        first = match.group()[:1]
        if first in (b"[", b"{"):
            depth += 1
            if depth > limit:
                raise invalid_body(f"it is nested deeper than {limit} levels")
        elif first != b'"':
            depth -= 1


# The closing quote is optional so that an unterminated string is passed over once, not once for
# every quote inside it.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


@lru_cache(maxsize=256)
def _reader(type_: Any) -> Callable[[bytes, Limits], Any]:
    """Returns the reader of a type: direct, or through its shape."""
    shape = _SHAPES.get(type_)
    if shape is None:
        plain = msgspec.json.Decoder(type_, dec_hook=_build_custom)
        return lambda body, _limits: plain.decode(body)
    decoder = msgspec.json.Decoder(shape)
    return lambda body, limits: decoder.decode(body).build(limits)


def _build_custom(type_: type, value: Any) -> Any:
    """A value of a class msgspec does not know, inside a struct."""
    shape = _SHAPES.get(type_)
    if shape is None:
        raise NotImplementedError(f"a {_name(type_)} has no JSON form")
    return msgspec.convert(value, shape).build()


def _name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)


def reason(error: Exception) -> str:
    """Returns the reason why an input is invalid, without its path and without a full stop."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # msgspec wraps errors of a struct's own check, with the error code in the text.
    own = error.__cause__ if isinstance(error.__cause__, ValidationError) else error
    text = own.message if isinstance(own, ValidationError) else str(error)
    return _PATH.sub("", text).rstrip(".")


_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def field_path(error: Exception) -> str:
    """Returns the path of the field that a msgspec error names: "lora_config.rank"."""
    text = str(error)
    at = _PATH.search(text)
    missing = _MISSING.search(text)
    parts = [at.group(1) if at else "", missing.group(1) if missing else ""]
    return ".".join(part for part in parts if part)


def _with_short_tensors(value: object) -> object:
    """Returns the value with tensors in the form that leaves absent fields out, where
    msgspec would write null."""
    if isinstance(value, TensorData):
        return TensorShape.of(value)
    if isinstance(value, SampleRequest) and value.target_prompt_logprobs is not None:
        form = TensorShape.of(value.target_prompt_logprobs)
        value = copy.copy(value)
        msgspec.structs.force_setattr(value, "target_prompt_logprobs", form)
    return value


def _hook(value: object) -> object:
    if callable(to_list := getattr(value, "tolist", None)):  # scalars and arrays of numpy, torch
        return to_list()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)
