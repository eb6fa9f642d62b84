"""Engine calls as bytes: msgpack. No pickle, and no torch.

Argument and result types are read from the `Engine` protocol itself, so both ends decode into
exactly these types, and a method added there needs no change here. Arrays are sent as dtype, shape
and raw bytes.
"""

from __future__ import annotations

import inspect
import typing
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tinkex.engine.interface import Engine, RequestError

__all__ = [
    "PING",
    "EngineCall",
    "Reply",
    "argument_types",
    "decode",
    "encode",
    "result_type",
]


class EngineCall(msgspec.Struct, array_like=True):
    """A method and its arguments, encoded by the types the method declares."""

    call_id: int
    method: str
    arguments: msgspec.Raw


class Reply(msgspec.Struct, array_like=True):
    """The answer to a call: a value, or the error."""

    call_id: int
    error: RequestError | None
    value: msgspec.Raw
    seconds: float = 0.0
    """Seconds for which the engine computed the call, by the worker's own clock."""


PING = EngineCall(-1, "ping", msgspec.Raw(msgspec.msgpack.encode(())))
"""Not a call of the engine: the worker's reading thread answers it with a reply of the same id."""


@cache
def argument_types(method: str) -> Any:
    """Returns the tuple type of a method's arguments."""
    function = getattr(Engine, method)
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return tuple[tuple(hints[name] for name in names)] if names else tuple[()]  # type: ignore[misc]


@cache
def result_type(method: str) -> Any:
    """Returns the type a method returns, directly or in a future."""
    returned = typing.get_type_hints(getattr(Engine, method))["return"]
    return typing.get_args(returned)[0] if typing.get_origin(returned) is Future else returned


def encode(value: object) -> bytes:
    """Returns the value as msgpack."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_custom)


def decode(data: bytes | msgspec.Raw, wanted: Any) -> Any:
    """Returns the value decoded as the given type."""
    return msgspec.msgpack.decode(data, type=wanted, dec_hook=_decode_custom)


def _encode_custom(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not cross the engine's border")


def _decode_custom(wanted: Any, value: Any) -> Any:
    if wanted is Path:
        return Path(value)
    if (typing.get_origin(wanted) or wanted) is np.ndarray:
        dtype, shape, data = value
        kind = np.dtype(dtype)
        if kind.kind not in "iufb":
            raise ValueError(f"arrays of {dtype} do not cross the engine's border")
        return np.frombuffer(data, kind).reshape(shape)
    raise NotImplementedError(f"{wanted} does not cross the engine's border")
