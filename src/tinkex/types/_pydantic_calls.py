"""What the official types that are pydantic models can do, and those that are dataclasses can not.

Iterating over the fields, which `dict(value)` does; which fields were set; and the calls of
pydantic's first version, which its second still answers, with a warning as there.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Self

from tinkex.types._model_methods import ModelMethods


class PydanticCalls(ModelMethods):
    """For types that are pydantic models in the official package."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and values of the fields, values as they are: `dict(value)` is a flat dict."""
        from tinkex.types._model_dump import field_values

        return iter(field_values(self).items())

    @property
    def model_fields_set(self) -> set[str]:
        """The fields that were set. A struct does not know which were given with their default:
        it counts those that have none, and those that differ from it."""
        from tinkex.types._model_fields import fields_of

        return {
            name
            for name, field in fields_of(type(self)).items()
            if not field.is_tag and not field.is_default(getattr(self, name))
        }

    @property
    def model_extra(self) -> None:
        """None: unknown fields are never kept."""
        return None

    def json(self, **options: Any) -> str:
        """`model_dump_json` with its `options`."""
        _warn("json", "model_dump_json")
        return self.model_dump_json(**options)

    def copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """`model_copy` with the changes of `update`; `deep` copies what is held too."""
        _warn("copy", "model_copy")
        return self.model_copy(update=update, deep=deep)

    @classmethod
    def construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """`model_construct` from `values`; `_fields_set` is not needed."""
        _warn("construct", "model_construct")
        return cls.model_construct(_fields_set, **values)

    @classmethod
    def parse_obj(cls, obj: Any) -> Self:
        """`model_validate` of `obj`."""
        _warn("parse_obj", "model_validate")
        return cls.model_validate(obj)

    @classmethod
    def parse_raw(cls, b: str | bytes) -> Self:
        """`model_validate_json` of the JSON text `b`."""
        _warn("parse_raw", "model_validate_json")
        return cls.model_validate_json(b)

    def dict(self, **options: Any) -> builtins.dict[str, Any]:
        """`model_dump` with its `options`."""
        _warn("dict", "model_dump")
        return self.model_dump(**options)


def _warn(name: str, successor: str) -> None:
    warnings.warn(f"{name}() is deprecated; use {successor}().", DeprecationWarning, stacklevel=3)
