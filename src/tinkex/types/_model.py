"""Methods of every protocol type beside its fields: pydantic's calls, without pydantic.

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
    """Declares a field's content where its annotation cannot: `Annotated[list[Any], Holds(...)]`.

    The type itself converts the value. With a `name`, the field is a property and a keyword of the
    constructor under that name.
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
    """Policy for a keyword that is no field."""

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
        """Returns the fields as a dict, nested values too; `mode="json"` converts dates to texts.

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
        """Returns a copy with some fields changed; unlike pydantic, the changes are checked."""
        from tinkex.types._model_fields import copied

        return copied(self, update or {}, deep=deep)

    @classmethod
    def model_validate(cls, obj: Any, **_pydantic_options: Any) -> Self:
        """Returns the value that a dict (or an object of this type) describes.

        Raises:
            ValidationError: it describes none; the message names the field.
        """
        from tinkex.types._coercion import validated

        return validated(cls, obj)

    @classmethod
    def model_validate_json(
        cls, json_data: str | bytes | bytearray, **_pydantic_options: Any
    ) -> Self:
        """Returns the value that a JSON text describes.

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
        """Returns the value that a dict of texts describes."""
        return cls.model_validate(obj)

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Returns a value with these fields; unlike pydantic, they are
        checked as by the constructor."""
        return cls(**values)

    @classmethod
    def model_json_schema(cls, **_pydantic_options: Any) -> dict[str, Any]:
        """Returns the JSON schema of the output of `model_dump_json`."""
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
    """Accepts the keywords that the official constructors accept."""

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
        """Converts the arguments of a call to their fields' types; refuses or
        drops unknown ones."""
        checks = _checks(cls)
        for name, value in list(given.items()):
            check = checks.get(name)
            if check is None:
                _handle_unknown(cls, name, given)
            elif type(value) not in check.types:
                given[name] = check.coerce(value)
        return args, given


class AnswerModel(ProtocolModel, frozen=True):
    """A type that servers send: unknown fields, of newer servers, are ignored."""

    unknown_fields: ClassVar[Unknown] = "ignore"


class RecordModel(ProtocolModel, frozen=True):
    """A type whose fields are not converted, as in a dataclass."""

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, given


class Check(NamedTuple):
    """Converts a keyword to the value of its field; values of one of these types are kept."""

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
    """Accepts a constant, such as `type`, given with its value. Anything else is unknown; the
    struct itself refuses what remains in `given`."""
    from tinkex.types._model_fields import constant_of

    constant = constant_of(cls)
    if constant is not None and constant.name == name:
        constant.check(cls, given[name])
    elif cls.unknown_fields == "refuse":
        return
    elif cls.unknown_fields == "warn":
        warnings.warn(f"{cls.__name__} does not know {name}: it is ignored.", stacklevel=4)
    del given[name]
