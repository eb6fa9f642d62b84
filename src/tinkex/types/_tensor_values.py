"""The values of a tensor: read from Python's numbers, texts of numbers, numpy and torch; as bytes.

A dtype that is given converts as the official type does: whole numbers from floats and from texts.
A fraction given for an int64 is cut towards zero as there, but with a warning.
"""

from __future__ import annotations

import math
import sys
import warnings
from array import array
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal

from tinkex.errors import ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TensorDtype = Literal["int64", "float32"]
Parts = tuple[bytes, TensorDtype, list[int] | None]
"""Little-endian values, their dtype and shape; a flat list has no shape of its own."""

ITEM_BYTES: Final[Mapping[str, int]] = {"int64": 8, "float32": 4}
NUMPY_CODES: Final[Mapping[str, str]] = {"int64": "<i8", "float32": "<f4"}
_TYPECODES: Final[Mapping[str, Literal["q", "f"]]] = {"int64": "q", "float32": "f"}


def read_values(data: Any, dtype: TensorDtype | None) -> Parts:
    """What a tensor keeps of the data of its constructor.

    Raises:
        ValidationError: these are no numbers, or they do not fit the dtype.
    """
    if dtype is not None and dtype not in ITEM_BYTES:
        raise ValidationError(f"dtype={dtype!r} is not one of 'int64', 'float32'.")
    if hasattr(data, "__array__") or hasattr(data, "detach"):
        return _from_array(data, dtype)
    if dtype is not None:
        data = _as_sequence(data)
    return _from_sequence(data, dtype)


def pack(values: Sequence[Any], dtype: TensorDtype) -> bytes:
    """Numbers as little-endian bytes.

    Raises:
        ValidationError: one of them does not fit.
    """
    try:
        return array(_TYPECODES[dtype], values).tobytes()
    except (TypeError, OverflowError) as error:
        raise _unwritable(dtype, error) from error


def unpack(raw: bytes, dtype: TensorDtype) -> list[Any]:
    """The numbers that `pack` wrote."""
    values = array(_TYPECODES[dtype])
    values.frombytes(raw)
    return values.tolist()


def holds_fractions(values: Sequence[Any]) -> bool:
    """Whether some number is no whole one."""
    kinds = set(map(type, values))
    return float in kinds and any(
        type(value) is float and not value.is_integer() for value in values
    )


def _unwritable(dtype: TensorDtype, error: Exception) -> ValidationError:
    return ValidationError(f"These values cannot be written as {dtype}: {error}.")


def _as_sequence(data: Any) -> Any:
    """Nothing is an empty tensor, and one number, or a text of it, a tensor of one."""
    if data is None:
        return []
    return [data] if isinstance(data, int | float | str) else data


def _from_sequence(values: Any, dtype: TensorDtype | None) -> Parts:
    """Of numbers in (possibly nested) sequences."""
    if not _is_row(values):
        raise ValidationError(
            f"A tensor is made of a sequence of numbers, not {type(values).__name__}."
        )
    flat, shape = _flatten(values)
    kinds = set(map(type, flat))
    if any(hasattr(kind, "item") for kind in kinds):  # numpy's and torch's own numbers
        flat = [value.item() if hasattr(value, "item") else value for value in flat]
        kinds = set(map(type, flat))
    chosen: TensorDtype = dtype or ("float32" if float in kinds else "int64")
    if NoneType in kinds and chosen == "float32":  # JSON has no NaN
        flat = [math.nan if value is None else value for value in flat]
    if dtype is not None and not kinds <= {int, bool, float if dtype == "float32" else int}:
        flat = _converted(flat, dtype)
    return pack(flat, chosen), chosen, shape


def _converted(flat: Sequence[Any], dtype: TensorDtype) -> list[int] | list[float]:
    """The numbers of a requested dtype, read from texts and from numbers of another kind."""
    try:
        if dtype == "float32":
            return [float(value) for value in flat]
        whole = [int(value) for value in flat]
    except (TypeError, ValueError, OverflowError) as error:
        raise _unwritable(dtype, error) from error
    if holds_fractions(flat):
        _warn_of_fractions()
    return whole


def _warn_of_fractions() -> None:
    """Warns at the line that is not Tinkex's own."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("tinkex."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        "Fractions were given for a tensor of int64: they are cut towards zero.", stacklevel=level
    )


def _is_row(value: Any) -> bool:
    """Whether a value holds further values: no number, no text, no array without dimensions."""
    return (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not isinstance(value, (str, bytes, bytearray, dict))
        and getattr(value, "ndim", 1) > 0
    )


def _flatten(values: Any) -> tuple[Sequence[Any], list[int] | None]:
    """Flat values, and the shape if they were nested."""
    shape = [len(values)]
    while len(values) and _is_row(values[0]):
        width = len(values[0])
        if any(not _is_row(row) or len(row) != width for row in values):
            raise ValidationError("The rows of a tensor must all have the same length.")
        shape.append(width)
        values = [item for row in values for item in row]
    return values, shape if len(shape) > 1 else None


def _from_array(values: Any, dtype: TensorDtype | None) -> Parts:
    """Of a numpy or torch array."""
    import numpy as np

    if hasattr(values, "detach"):
        values = values.detach().to("cpu").to_dense()
        if "bfloat16" in str(values.dtype):
            values = values.float()
        values = values.numpy()
    found = np.asarray(values)
    chosen = dtype or _dtype_of(found)
    is_number = found.dtype.kind in "fib" or found.dtype.name == "bfloat16"
    if not is_number or (found.dtype.kind == "f" and chosen == "int64"):
        raw, _, _ = _from_sequence(found.ravel().tolist(), chosen)
    else:
        raw = np.ascontiguousarray(found, dtype=NUMPY_CODES[chosen]).tobytes()
    return raw, chosen, list(found.shape)


def _dtype_of(found: NDArray[Any]) -> TensorDtype:
    if found.dtype.kind == "f" or found.dtype.name == "bfloat16":
        return "float32"
    if found.dtype.kind == "i":
        return "int64"
    raise ValidationError(
        f"dtype {found.dtype} has no place in the protocol; use signed integers or floats."
    )
