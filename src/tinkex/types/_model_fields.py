"""The fields of a type: names, annotations and defaults, as pydantic's `model_fields` has them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._model import Holds
from tinkex.types._model_methods import ModelMethods

M = TypeVar("M", bound=ModelMethods)

REQUIRED: Any = msgspec.NODEFAULT
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class ModelField:
    """One field of a type."""

    name: str
    annotation: Any
    default: Any = REQUIRED
    default_factory: Callable[[], Any] | None = None
    description: str | None = None
    alias: str | None = None
    is_own_check: bool = False
    """Whether the type's `__post_init__` converts the value."""

    @property
    def is_tag(self) -> bool:
        """Whether the field has a single value, which identifies its type in a union."""
        return get_origin(self.annotation) is Literal and len(get_args(self.annotation)) == 1

    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.default is REQUIRED and self.default_factory is None

    def get_default(self, *, call_default_factory: bool = False) -> Any:
        """Returns the default; None if there is none, or if it is made by a factory
        that is not called."""
        if self.default_factory is not None:
            return self.default_factory() if call_default_factory else None
        return None if self.default is REQUIRED else self.default

    def is_default(self, value: Any) -> bool:
        """Returns whether a value is the default."""
        return not self.is_required() and bool(value == self.get_default(call_default_factory=True))


class Constant(NamedTuple):
    """A field that has one value in all objects of its type, and is not stored in the struct."""

    name: str
    value: str

    def check(self, cls: type, given: object) -> None:
        """Returns if the constant was given with its value, or not at all.

        Raises:
            ValidationError: it was given another value.
        """
        if given is not None and given != self.value:
            raise ValidationError(
                f"{cls.__name__}: {self.name}={given!r:.80} must be {self.value!r}."
            )


_CONSTANTS: dict[type, Constant | None] = {}
_FIELDS: dict[type, Mapping[str, ModelField]] = {}


def constant_of(cls: type) -> Constant | None:
    """Returns the constant of a type: its tag, or its name in a class variable."""
    if cls not in _CONSTANTS:
        _CONSTANTS[cls] = _constant(cls)
    return _CONSTANTS[cls]


def _constant(cls: type) -> Constant | None:
    config = getattr(cls, "__struct_config__", None)
    if config is not None and config.tag_field is not None:
        return Constant(config.tag_field, str(config.tag))
    value = getattr(cls, "type", None)
    return Constant("type", value) if isinstance(value, str) else None


def fields_of(cls: type) -> Mapping[str, ModelField]:
    """Returns the fields of a type by name, in the order of their declaration."""
    if cls not in _FIELDS:
        _FIELDS[cls] = MappingProxyType({field.name: field for field in _fields(cls)})
    return _FIELDS[cls]


def _fields(cls: type) -> list[ModelField]:
    if issubclass(cls, msgspec.Struct):
        return [
            _field(field.name, field.type, field.default, field.default_factory)
            for field in msgspec.structs.fields(cls)
        ]
    form = next(base for base in cls.__mro__ if "__dataclass_fields__" in vars(base))
    hints = get_type_hints(form, include_extras=True)
    return [
        _field(field.name, hints[field.name], _or_required(field.default), REQUIRED)
        for field in dataclass_fields(cast(Any, cls))
    ]


def _or_required(default: Any) -> Any:
    return REQUIRED if default is MISSING else default


def _field(name: str, hint: Any, default: Any, factory: Any) -> ModelField:
    annotation, description, is_own_check = hint, None, False
    if get_origin(hint) is Annotated:
        annotation, *metadata = get_args(hint)
        for each in metadata:
            if isinstance(each, Holds):
                annotation, is_own_check = each.hint, True
                if each.name is not None:
                    name, default = each.name, [] if default == b"" else default
            description = getattr(each, "help", description)
            is_own_check = is_own_check or hasattr(each, "range_text")
    return ModelField(
        name,
        annotation,
        default,
        None if factory is REQUIRED else factory,
        description,
        is_own_check=is_own_check,
    )


def copied(value: M, update: Mapping[str, Any], *, deep: bool) -> M:
    """Returns a copy of the value with some fields changed."""
    cls = type(value)
    unknown = [name for name in update if name not in fields_of(cls)]
    constant = constant_of(cls)
    if constant is not None:
        unknown = [n for n in unknown if (n, update[n]) != (constant.name, constant.value)]
    if unknown:
        raise ValidationError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}.")
    source = copy.deepcopy(value) if deep else value
    if not update:
        return copy.copy(source)
    kept = {name: getattr(source, name) for name in fields_of(cls)}
    return cls(**{**kept, **update})
