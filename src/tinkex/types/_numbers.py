"""Conversion of numbers: Python's own, the scalars of numpy and torch, and texts of numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import msgspec

from tinkex.errors import ValidationError


def as_int(name: str, value: Any) -> int:
    """Returns a whole number of any library's integer type, of a text, or of a whole float.

    Raises:
        ValidationError: it is not a number; the message names the argument.
    """
    if type(value) is int:
        return value
    try:
        if isinstance(value, str) or (isinstance(value, float) and value.is_integer()):
            return int(value)
        if not isinstance(value, bool):
            index: int = operator.index(value)  # pyright: ignore[reportArgumentType]
            return index
    except (TypeError, ValueError):
        pass
    raise ValidationError(f"{name}={value!r} must be a whole number.")


def as_float(name: str, value: Any) -> float:
    """Returns a number of any library's scalar type, or of a text.

    Raises:
        ValidationError: it is not a number; the message names the argument.
    """
    if type(value) is float:
        return value
    try:
        if not isinstance(value, bool | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValidationError(f"{name}={value!r} must be a number.")


def make_plain(
    struct: msgspec.Struct, *, ints: Iterable[str] = (), floats: Iterable[str] = ()
) -> None:
    """Converts the named fields of a frozen struct to Python's own numbers; None stays None.

    Raises:
        ValidationError: one of them is no number.
    """
    for names, convert in ((ints, as_int), (floats, as_float)):
        for name in names:
            value = getattr(struct, name)
            if value is not None:
                plain = convert(name, value)
                if plain is not value:
                    msgspec.structs.force_setattr(struct, name, plain)
