"""Ranges of parameters, declared beside the fields that hold them.

A struct's field says `Annotated[float, Parameter(...)]`; `check_parameters` in `__post_init__` then
holds it to its range. The same declaration names the protocol extensions and describes the options
of the command line, so a parameter is declared once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._numbers import as_float, as_int

_MAX_TOKEN_ID = 2**31 - 1


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """The range of one parameter, and its help text on the command line.

    `off` is a value outside the range that switches the parameter off. For a map of token ids the
    range is that of its values. An `is_extension` is not part of the official protocol: clients
    send it only to servers that announce it.
    """

    help: str
    metavar: str
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    off: float | None = None
    max_entries: int = 0
    is_extension: bool = False

    @property
    def range_text(self) -> str:
        """Returns the range in words: "above 0 and at most 1"."""
        bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most}
        limits = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
        words = " and ".join(limits) or "a finite number"
        return words if self.off is None else f"{self.off:g} (off) or {words}"

    def check(self, name: str, value: float) -> None:
        """Returns if the value is in the range.

        Raises:
            ValidationError: the value is outside; the message has name, value and range.
        """
        is_inside = self.at_least <= value <= self.at_most and value > self.above
        if not (is_inside and math.isfinite(value)) and value != self.off:
            raise ValidationError(f"{name}={value!r} must be {self.range_text}.")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A struct's field that holds a parameter."""

    name: str
    parameter: Parameter
    default: Any
    kind: type  # int, float, or dict for a map of token ids to floats

    def plain(self, value: Any) -> Any:
        """Returns the value as a plain Python number; the default itself if it is equal.

        Raises:
            ValidationError: the value is not a number, or is outside the range.
        """
        if value is None and self.default is None:
            return None
        plain = self._plain_map(value) if self.kind is dict else self._plain_number(value)
        return self.default if plain == self.default else plain

    def _plain_number(self, value: Any) -> float:
        plain = as_int(self.name, value) if self.kind is int else as_float(self.name, value)
        self.parameter.check(self.name, plain)
        return plain

    def _plain_map(self, value: Any) -> dict[int, float] | None:
        if not isinstance(value, Mapping):
            raise ValidationError(f"{self.name}={value!r:.80} must map token ids to numbers.")
        most = self.parameter.max_entries
        if len(value) > most:
            raise ValidationError(
                f"{self.name} has {len(value)} entries; it must have at most {most}."
            )
        plain = {}
        for key, number in value.items():
            token = as_int(f"a token id in {self.name}", key)
            if not 0 <= token <= _MAX_TOKEN_ID:
                raise ValidationError(
                    f"{self.name} has token id {token}; ids must be 0 to {_MAX_TOKEN_ID}."
                )
            plain[token] = as_float(f"{self.name}[{token}]", number)
            self.parameter.check(f"{self.name}[{token}]", plain[token])
        return plain or None


@cache
def parameter_fields(type_: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Returns the declared parameters of a struct, in the order of its fields."""
    return tuple(
        Field(
            name=field.name,
            parameter=parameter,
            default=_default(field),
            kind=_kind(field.type),
        )
        for field in msgspec.structs.fields(type_)
        if (parameter := _parameter(field.type)) is not None
    )


def check_parameters(struct: msgspec.Struct) -> None:
    """Converts the declared parameters of a frozen struct to plain numbers.

    Raises:
        ValidationError: one of them is no number, or outside its range.
    """
    for field in parameter_fields(type(struct)):
        value = getattr(struct, field.name)
        if value is not field.default:
            plain = field.plain(value)
            if plain is not value:
                msgspec.structs.force_setattr(struct, field.name, plain)


def extensions(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """Returns the names of a struct's parameters that the official protocol does not have."""
    return tuple(each.name for each in parameter_fields(type_) if each.parameter.is_extension)


def extensions_used(struct: msgspec.Struct) -> tuple[str, ...]:
    """Returns the extensions that are set to something other than their default."""
    return tuple(
        each.name
        for each in parameter_fields(type(struct))
        if each.parameter.is_extension and getattr(struct, each.name) != each.default
    )


def _parameter(hint: Any) -> Parameter | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in hint.__metadata__ if isinstance(each, Parameter)), None)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _kind(hint: Any) -> type:
    """Returns int for `Annotated[int | None, ...]`, dict for `Annotated[Mapping[int, float]
    | None, ...]`."""
    base = get_args(hint)[0]
    given = {base, *get_args(base)}
    if any(get_origin(each) is Mapping for each in given):
        return dict
    return int if int in given else float
