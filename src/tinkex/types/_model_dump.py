"""Values as dicts and lists, as pydantic's `model_dump` gives them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tinkex.types._model import ModelMethods
from tinkex.types._model_fields import constant_of, fields_of


class DumpOptions(NamedTuple):
    """Selects which fields of a value, and of nested values, are dumped."""

    is_json: bool = False
    excludes_defaults: bool = False
    excludes_none: bool = False


def dumped(
    value: ModelMethods,
    options: DumpOptions,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Returns the fields of a value as a dict."""
    cls = type(value)
    wanted = None if include is None else set(include)
    unwanted = set(exclude or ())
    found = {}
    for name, field in fields_of(cls).items():
        mine = getattr(value, name)
        spares_defaults = options.excludes_defaults or name in cls.beyond_protocol
        is_spared = spares_defaults and not field.is_tag and field.is_default(mine)
        if not is_spared and not (options.excludes_none and mine is None):
            found[name] = _plain(mine, options)
    constant = constant_of(cls)
    if constant is not None:
        found[constant.name] = constant.value
    return {
        name: plain
        for name, plain in found.items()
        if name not in unwanted and (wanted is None or name in wanted)
    }


def _plain(value: Any, options: DumpOptions) -> Any:
    if isinstance(value, ModelMethods):
        return dumped(value, options)
    if isinstance(value, Mapping):
        plain_key = str if options.is_json else _same
        return {plain_key(key): _plain(each, options) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, options) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if hasattr(value, "tolist"):  # numpy's arrays
        return value.tolist()
    if options.is_json and isinstance(value, Enum):
        return value.value
    if options.is_json and isinstance(value, datetime):
        return msgspec.to_builtins(value)
    return value


def _same(value: Any) -> Any:
    return value
