"""The pydantic calls that every type of the protocol answers, without pydantic.

The official SDK's types are pydantic models. Ours are msgspec structs (two of them classes that
keep bytes), and answer the same calls: `model_dump`, `model_validate`, `model_copy` and so on.
Nothing here imports pydantic; what a call needs beyond this file is loaded when it is first made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec

from tinkex.errors import ValidationError

if TYPE_CHECKING:
    from tinkex.types._model_fields import ModelField

Unknown = Literal["refuse", "ignore", "warn"]


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
        """The value with these fields, others ignored; unlike pydantic's, it is checked as by the
        constructor, and has to have every field without a default."""
        from tinkex.types._model_fields import fields_of

        return cls(**{name: value for name, value in values.items() if name in fields_of(cls)})

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
