"""JSON schemas of the types, and the pydantic hooks of types that are fields of its models."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from tinkex.errors import ValidationError
from tinkex.types._model_dump import DumpOptions, dumped
from tinkex.types._model_fields import ModelField, constant_of, fields_of
from tinkex.types._model_methods import ModelMethods

Schema = dict[str, Any]

_SCALARS: dict[Any, Schema] = {
    Any: {},
    object: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "format": "base64"},
    datetime: {"type": "string", "format": "date-time"},
}


def json_schema(cls: type[ModelMethods]) -> Schema:
    """Returns the schema of a type, with those of the types it holds under `$defs`."""
    definitions: dict[str, Schema] = {}
    found = _object(cls, definitions)
    return {**found, "$defs": definitions} if definitions else found


def whole_schema(cls: type[ModelMethods]) -> Schema:
    """Returns the schema of a type with those of the types it holds inlined, without `$defs`."""
    return _object(cls, None)


def _object(cls: type[ModelMethods], definitions: dict[str, Schema] | None) -> Schema:
    fields = fields_of(cls)
    properties = {name: _property(field, definitions) for name, field in fields.items()}
    constant = constant_of(cls)
    if constant is not None:
        properties[constant.name] = {
            "const": constant.value,
            "default": constant.value,
            "title": _title(constant.name),
            "type": "string",
        }
    found: Schema = {"title": cls.__name__, "type": "object", "properties": properties}
    if cls.__doc__:
        found["description"] = cls.__doc__.strip().partition("\n")[0]
    if required := [name for name, field in fields.items() if field.is_required()]:
        found["required"] = required
    if cls.unknown_fields == "refuse":
        found["additionalProperties"] = False
    return found


def _property(field: ModelField, definitions: dict[str, Schema] | None) -> Schema:
    found = {"title": _title(field.name), **_schema(field.annotation, definitions)}
    if field.description:
        found["description"] = field.description
    if not field.is_required():
        default = field.get_default(call_default_factory=True)
        is_model = isinstance(default, ModelMethods)
        found["default"] = dumped(default, DumpOptions(is_json=True)) if is_model else default
    return found


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _schema(hint: Any, definitions: dict[str, Schema] | None) -> Schema:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, args = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(each, definitions) for each in args]}
    if origin is Literal:
        return {"const": args[0], "type": "string"} if len(args) == 1 else {"enum": list(args)}
    if origin in (list, Sequence):
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], definitions) or True}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if isinstance(hint, type) and issubclass(hint, ModelMethods):
        if definitions is None:
            return _object(hint, None)
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {}


def core_schema(cls: type[ModelMethods]) -> Any:
    """Returns pydantic's schema to read and write a field of this type.

    pydantic is imported only here, since only pydantic calls this.
    """
    from pydantic_core import core_schema as core

    def dump(value: ModelMethods, info: Any) -> dict[str, Any]:
        options = DumpOptions(info.mode == "json", info.exclude_defaults, info.exclude_none)
        return dumped(value, options)

    return core.no_info_plain_validator_function(
        _pydantic_reader(cls),
        serialization=core.plain_serializer_function_ser_schema(dump, info_arg=True),
    )


def _pydantic_reader(cls: type[ModelMethods]) -> Callable[[Any], ModelMethods]:
    """Reads a value; pydantic shows a ValueError by its text, which should be the message alone."""

    def read(value: Any) -> ModelMethods:
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ValueError(error.message) from error

    return read
