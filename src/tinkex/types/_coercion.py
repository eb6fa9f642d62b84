"""Converts given values to the types of their fields.

As pydantic does by default: texts that are numbers, dates or truth values are read as such, a whole
float is an int, a dict is the type that it describes, a sequence of one kind is one of another.
"""

from __future__ import annotations

import types
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from tinkex.errors import ValidationError
from tinkex.types._model import Check
from tinkex.types._model_fields import constant_of, fields_of
from tinkex.types._model_methods import ModelMethods
from tinkex.types._numbers import as_float, as_int

M = TypeVar("M", bound=ModelMethods)

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "t": True, "y": True} | {
    "false": False, "no": False, "off": False, "0": False, "f": False, "n": False
}  # fmt: skip


def validated(cls: type[M], obj: Any) -> M:
    """Returns the object, or the one that a mapping describes.

    Raises:
        ValidationError: the mapping does not describe one.
    """
    if isinstance(obj, cls):
        return obj
    if not isinstance(obj, Mapping):
        raise ValidationError(f"{cls.__name__} is made of a dict, not of {_shown(obj)}.")
    given = {str(name): value for name, value in obj.items()}
    if (constant := constant_of(cls)) is not None:
        constant.check(cls, given.pop(constant.name, None))
    fields = fields_of(cls)
    missing = [name for name, each in fields.items() if each.is_required() and name not in given]
    if missing:
        raise ValidationError(f"{cls.__name__} needs {', '.join(missing)}.")
    unknown = [name for name in given if name not in fields]
    if unknown and cls.unknown_fields == "refuse":
        raise ValidationError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}.")
    values = {
        name: value if fields[name].is_own_check else coerce(fields[name].annotation, name, value)
        for name, value in given.items()
        if name in fields
    }
    return cls(**values)


def checks_of(cls: type[ModelMethods]) -> dict[str, Check]:
    """Returns, for each keyword of a type's constructor, the check that converts it."""
    return {
        name: Check(frozenset(), _as_given)
        if field.is_own_check
        else Check(frozenset(_exact(field.annotation)), partial(coerce, field.annotation, name))
        for name, field in fields_of(cls).items()
    }


def _as_given(value: Any) -> Any:
    return value


def _exact(hint: Any) -> set[type]:
    """Returns the types whose values need no conversion: a container's only if any
    element is allowed."""
    hint = _bare(hint)
    if _is_union(hint):
        return set().union(*map(_exact, get_args(hint)))
    if get_origin(hint) in (list, dict) and set(map(_bare, get_args(hint))) <= {Any, str}:
        return {get_origin(hint)} if _bare(get_args(hint)[-1]) is Any else set()
    return {hint} if isinstance(hint, type) and not get_args(hint) else set()


def coerce(hint: Any, name: str, value: Any) -> Any:
    """Converts the value to the type of its field.

    Raises:
        ValidationError: it has no such form; the message names the field.
    """
    return _coercer(hint)(name, value)


Coercer = Callable[[str, Any], Any]


@cache
def _coercer(hint: Any) -> Coercer:
    hint = _bare(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if _is_union(hint):
        return partial(_to_union, args)
    if origin is Literal:
        return partial(_to_literal, args)
    if origin in (list, Sequence):
        return partial(_to_list, args[0])
    if origin is tuple:
        return partial(_to_tuple, args)
    if origin in (dict, Mapping):
        return partial(_to_dict, *args)
    if isinstance(hint, type) and issubclass(hint, ModelMethods):
        return partial(_to_model, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return partial(_to_enum, hint)
    return _unchanged


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def _unchanged(name: str, value: Any) -> Any:
    return value


def _to_none(name: str, value: Any) -> None:
    if value is not None:
        raise ValidationError(f"{name}={_shown(value)} must be None.")


def _to_str(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValidationError(f"{name}={_shown(value)} must be a text.")
    return value


def _to_bool(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise ValidationError(f"{name}={_shown(value)} must be True or False.")


def _to_bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return b64decode(value, validate=True)
        except ValueError as error:
            raise ValidationError(f"{name} is a text that is no base64: {error}.") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise ValidationError(f"{name}={_shown(value)} must be bytes, or a text in base64.")


def _to_datetime(name: str, value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ValidationError(f"{name}={_shown(value)} must be a date and time in ISO form.")


def _to_literal(choices: tuple[Any, ...], name: str, value: Any) -> Any:
    if value not in choices:
        wanted = ", ".join(map(repr, choices))
        raise ValidationError(f"{name}={_shown(value)} must be one of {wanted}.")
    return value


def _to_list(element: Any, name: str, value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise ValidationError(f"{name}={_shown(value)} must be a list.")
    one = _coercer(element)
    return [one(name, each) for each in value]


def _to_tuple(elements: tuple[Any, ...], name: str, value: Any) -> tuple[Any, ...]:
    """Converts to a tuple of fixed length, with its own type at each place."""
    values = _to_list(Any, name, value)
    if len(values) != len(elements):
        raise ValidationError(f"{name}={_shown(value)} must have {len(elements)} values.")
    return tuple(_coercer(kind)(name, each) for kind, each in zip(elements, values, strict=True))


def _to_dict(key: Any, element: Any, name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValidationError(f"{name}={_shown(value)} must be a dict.")
    keys, values = _coercer(key), _coercer(element)
    return {keys(name, k): values(f"{name}[{k!r}]", v) for k, v in value.items()}


def _to_model(cls: type[ModelMethods], name: str, value: Any) -> Any:
    if isinstance(value, cls):
        return value
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        raise ValidationError(f"{name}: {error.message}") from error


def _to_enum(cls: type[Enum], name: str, value: Any) -> Enum:
    try:
        return cls(value)
    except ValueError as error:
        raise ValidationError(f"{name}={_shown(value)} is none of {cls.__name__}.") from error


def _to_union(choices: tuple[Any, ...], name: str, value: Any) -> Any:
    """Returns the value if it is one of the choices already, else the first
    conversion that succeeds."""
    for choice in choices:
        if isinstance(choice, type) and type(value) is choice:
            return value
    refusals = []
    for choice in choices:
        try:
            return _coercer(choice)(name, value)
        except ValidationError as error:
            if choice is not type(None):
                refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    reasons = "; ".join(error.message for error in refusals)
    raise ValidationError(f"{name}={_shown(value)} has none of its forms: {reasons}")


def _shown(value: Any) -> str:
    return f"{value!r:.80}" if not isinstance(value, Mapping | list) else type(value).__name__


_SCALARS: dict[Any, Coercer] = {
    Any: _unchanged,
    object: _unchanged,
    None: _to_none,
    type(None): _to_none,
    bool: _to_bool,
    int: as_int,
    float: as_float,
    str: _to_str,
    bytes: _to_bytes,
    datetime: _to_datetime,
}
