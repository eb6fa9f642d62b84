"""What every type of the protocol can do beside holding its fields: pydantic's calls, without it.

The official SDK's types are pydantic models. Ours are msgspec structs (two of them classes that
keep bytes), and answer the same calls: `model_dump`, `model_validate`, `model_copy` and so on. A
keyword of a constructor is converted to its declared type as in pydantic: a numeric text becomes
a number, an ISO text a date, a dict the type that it describes. Nothing here imports pydantic; what
a call needs beyond this file is loaded when it is first made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
)

import msgspec

from tinkex.errors import ValidationError

if TYPE_CHECKING:
    from tinkex.types._model_fields import ModelField

Unknown = Literal["refuse", "ignore", "warn"]
T = TypeVar("T")


class Holds(NamedTuple):
    """Says what a field holds, where its annotation cannot: `Annotated[list[Any], Holds(...)]`.

    The type itself brings the value into that form. With a `name`, the field is shown and given
    under it: as a property, and as a keyword of the constructor.
    """

    hint: Any
    name: str | None = None


class _FieldTable:
    """`model_fields`: computed at first access."""

    def __get__(self, instance: object, owner: type) -> Mapping[str, ModelField]:
        from tinkex.types._model_fields import fields_of

        return fields_of(owner)


class ModelMethods:
    """The pydantic calls, for a struct or a class with the same fields."""

    __slots__ = ()

    model_fields = _FieldTable()
    """The fields by name, each with its `annotation`, `default` and `is_required()`."""

    unknown_fields: ClassVar[Unknown] = "refuse"
    """What happens to a keyword that is no field."""

    beyond_protocol: ClassVar[frozenset[str]] = frozenset()
    """Fields that the official SDK does not have: dumped only if they are set."""

    def model_dump(
        self,
        *,
        mode: Literal["json", "python"] | str = "python",
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
        **_pydantic_options: Any,
    ) -> dict[str, Any]:
        """The fields as a dict, nested values too; `mode="json"` makes dates texts.

        `include` and `exclude` name fields of this value. A struct does not know which fields were
        given, so `exclude_unset` leaves out what equals its default, as `exclude_defaults` does.
        """
        from tinkex.types._model_dump import DumpOptions, dumped

        options = DumpOptions(
            is_json=mode == "json",
            excludes_defaults=exclude_defaults or exclude_unset,
            excludes_none=exclude_none,
        )
        return dumped(self, options, include, exclude)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """`model_dump(mode="json")` as JSON text."""
        text = msgspec.json.encode(self.model_dump(**{**options, "mode": "json"}))
        return (msgspec.json.format(text, indent=indent) if indent is not None else text).decode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same value with some fields changed; unlike pydantic's, the changes are checked."""
        from tinkex.types._model_fields import copied

        return copied(self, update or {}, deep=deep)

    @classmethod
    def model_validate(cls, obj: Any, **_pydantic_options: Any) -> Self:
        """The value that a dict (or an object of this type) describes.

        Raises:
            ValidationError: it describes none; the message names the field.
        """
        from tinkex.types._coercion import validated

        return validated(cls, obj)

    @classmethod
    def model_validate_json(
        cls, json_data: str | bytes | bytearray, **_pydantic_options: Any
    ) -> Self:
        """The value that a JSON text describes.

        Raises:
            ValidationError: it is no JSON, or describes none.
        """
        try:
            found = msgspec.json.decode(json_data)
        except msgspec.DecodeError as error:
            raise ValidationError(f"This is no JSON: {error}.") from error
        return cls.model_validate(found)

    @classmethod
    def model_validate_strings(cls, obj: Any, **_pydantic_options: Any) -> Self:
        """The value that a dict of texts describes."""
        return cls.model_validate(obj)

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """The value with these fields; unlike pydantic's, it is checked as by the constructor."""
        return cls(**values)

    @classmethod
    def model_json_schema(cls, **_pydantic_options: Any) -> dict[str, Any]:
        """The JSON schema of what `model_dump_json` writes."""
        from tinkex.types._model_schema import json_schema

        return json_schema(cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Lets a pydantic model have a field of this type."""
        from tinkex.types._model_schema import core_schema

        return core_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        from tinkex.types._model_schema import whole_schema

        return whole_schema(cls)


class ModelMeta(msgspec.StructMeta):
    """Takes the keywords that the official constructors take."""

    if not TYPE_CHECKING:  # checkers read the signature off the fields

        def __call__(cls, *args, **given):
            if args or given:
                args, given = cls._arguments(args, given)
            return super().__call__(*args, **given)


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True)
class ProtocolModel(ModelMethods, msgspec.Struct, metaclass=ModelMeta, frozen=True):
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


class RecordModel(ProtocolModel, frozen=True):
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
