"""The bases of the types of the protocol: msgspec structs with pydantic's calls.

A keyword of a constructor is converted to its declared type as in pydantic: a numeric text becomes
a number, an ISO text a date, a dict the type that it describes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    dataclass_transform,
)

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._model_methods import ModelMethods, Unknown
from tinkex.types._pydantic_calls import PydanticCalls


class Holds(NamedTuple):
    """Says what a field holds, where its annotation cannot: `Annotated[list[Any], Holds(...)]`.

    The type itself brings the value into that form. With a `name`, the field is shown and given
    under it: as a property, and as a keyword of the constructor.
    """

    hint: Any
    name: str | None = None


_REFUSALS = ("Missing required argument", "Unexpected keyword argument")
"""How msgspec's own errors begin for which pydantic has a ValueError; ours is one too."""


class ModelMeta(msgspec.StructMeta):
    """Takes the keywords that the official constructors take, and refuses others as those do."""

    if not TYPE_CHECKING:  # checkers read the signature off the fields

        def __call__(cls, *args, **given):
            if args or given:
                args, given = cls._arguments(args, given)
            try:
                return super().__call__(*args, **given)
            except TypeError as error:
                if issubclass(cls, PydanticCalls) and str(error).startswith(_REFUSALS):
                    raise ValidationError(f"{cls.__name__}: {error}.") from None
                raise


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True)
class ProtocolModel(PydanticCalls, msgspec.Struct, metaclass=ModelMeta, frozen=True):
    """A type of the protocol."""

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, each in its field's type; unknown ones refused or left out."""
        checks = _checks(cls)
        for name, value in list(given.items()):
            check = checks.get(name)
            if check is None:
                _handle_unknown(cls, name, given)
            elif type(value) not in check.types:
                given[name] = check.coerce(value)
        return args, given


class AnswerModel(ProtocolModel, frozen=True):
    """A type that servers send: fields of newer servers are ignored."""

    unknown_fields: ClassVar[Unknown] = "ignore"


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True)
class RecordModel(ModelMethods, msgspec.Struct, metaclass=ModelMeta, frozen=True):
    """A type whose fields are taken as they are given, as a dataclass takes them."""

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, given


class Check(NamedTuple):
    """How a keyword becomes the value of its field: as it is, if it has one of these types."""

    types: frozenset[type]
    coerce: Callable[[Any], Any]


_CHECKS: dict[type, dict[str, Check]] = {}


def _checks(cls: type[ProtocolModel]) -> dict[str, Check]:
    found = _CHECKS.get(cls)
    if found is None:
        from tinkex.types._coercion import checks_of

        found = _CHECKS[cls] = checks_of(cls)
    return found


def _handle_unknown(cls: type[ProtocolModel], name: str, given: dict[str, Any]) -> None:
    """A constant, such as `type`, may be given with its value. Anything else is unknown; what is
    left in `given` is refused by the struct itself."""
    from tinkex.types._model_fields import constant_of

    constant = constant_of(cls)
    if constant is not None and constant.name == name:
        constant.check(cls, given[name])
    elif cls.unknown_fields == "refuse":
        return
    elif cls.unknown_fields == "warn":
        warnings.warn(f"{cls.__name__} does not know {name}: it is ignored.", stacklevel=4)
    del given[name]
