"""Arrays of a sampling result: stored as little-endian bytes, used as lists or arrays.

The official constructors take arrays by name (`tokens_np`) or, under private names, lists.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkex.errors import ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

EMPTY_LOGPROB = -99999.0
"""The logprob of an empty top-k cell."""

Pairs = list[list[tuple[int, float]] | None]
"""Per position its (token, logprob) pairs; None where there are none."""


def ints_of(raw: bytes) -> list[int]:
    """Returns the int32 values in bytes."""
    values = array("i")
    values.frombytes(raw)
    return values.tolist()


def floats_of(raw: bytes) -> list[float]:
    """Returns the float32 values in bytes."""
    values = array("f")
    values.frombytes(raw)
    return values.tolist()


def numpy_of(raw: bytes, code: str) -> NDArray[Any]:
    """Returns the values in bytes as a numpy array that shares their memory."""
    import numpy as np

    array_: NDArray[Any] = np.frombuffer(raw, dtype=code)
    return array_


def pack_ints(values: Any) -> bytes:
    """Returns token ids as int32 bytes; bytes are returned as they are."""
    return _packed("i", [] if values is None else values)


def pack_floats(values: Any) -> bytes | None:
    """Returns logprobs as float32 bytes, None among them as NaN; None and bytes are
    returned as they are."""
    if values is None or isinstance(values, bytes):
        return values
    plain = _flat(values)
    return _packed("f", [math.nan if value is None else value for value in plain])


def _packed(code: str, values: Any) -> bytes:
    if isinstance(values, bytes):
        return values
    try:
        return array(code, _flat(values)).tobytes()
    except (TypeError, OverflowError) as error:
        raise ValidationError(f"These are no token ids or logprobs: {error}.") from error


def _flat(values: Any) -> list[Any]:
    """Returns the values of a list, a list of rows or an array."""
    if hasattr(values, "ravel"):
        return list(values.ravel().tolist())
    rows = list(values)
    return [cell for row in rows for cell in row] if rows and isinstance(rows[0], list) else rows


def rectangle(rows: Sequence[Sequence[tuple[int, float]] | None]) -> dict[str, Any]:
    """Returns rows of pairs as the fields of `TopkLogprobs`, short rows padded."""
    width = max((len(row or ()) for row in rows), default=0)
    empty = (0, EMPTY_LOGPROB)
    cells = [cell for row in rows for cell in [*(row or ()), *[empty] * (width - len(row or ()))]]
    return {
        "token_ids_raw": pack_ints([token for token, _ in cells]),
        "logprobs_raw": pack_floats([logprob for _, logprob in cells]),
        "k": width,
        "length": len(rows),
    }


def renamed(
    args: tuple[Any, ...],
    given: dict[str, Any],
    order: tuple[str, ...],
    forms: Mapping[str, tuple[str, Callable[[Any], Any]]],
) -> dict[str, Any]:
    """Returns the arguments of a constructor as the struct's fields.

    `order` names the positional ones; `forms` maps a name of the official constructor to the
    field and the function that converts the value. An argument that is None counts as not given.
    """
    if len(args) > len(order):
        raise TypeError(f"{len(args)} arguments were given by position; {len(order)} are known.")
    found = {**dict(zip(order, args, strict=False)), **given}
    for name in forms.keys() & found.keys():
        value = found.pop(name)
        field, form = forms[name]
        if value is not None:
            found[field] = form(value)
    return found
