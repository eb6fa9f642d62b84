"""Values as dicts and lists, as pydantic's `model_dump` gives them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tinkex.types._model_fields import constant_of, fields_of
from tinkex.types._model_methods import ModelMethods


class DumpOptions(NamedTuple):
    """What of a value is wanted, in it and in what it holds."""

    is_json: bool = False
    excludes_defaults: bool = False
    excludes_none: bool = False


def dumped(
    value: ModelMethods,
    options: DumpOptions,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The fields of a value as a dict."""
    wanted = None if include is None else set(include)
    unwanted = set(exclude or ())
    found = field_values(value, spares_defaults=options.excludes_defaults)
    return {
        name: _plain(mine, options)
        for name, mine in found.items()
        if name not in unwanted and (wanted is None or name in wanted)
        if not (options.excludes_none and mine is None)
    }


def field_values(value: ModelMethods, *, spares_defaults: bool = False) -> dict[str, Any]:
    """The fields of a value by name, and its constant, each as it is.

    What the protocol does not have is left out where it is the default, and with `spares_defaults`
    everything that is.
    """
    cls = type(value)
    found = {}
    for name, field in fields_of(cls).items():
        mine = getattr(value, name)
        is_spared = (spares_defaults or name in cls.beyond_protocol) and not field.is_tag
        if not (is_spared and field.is_default(mine)):
            found[name] = mine
    constant = constant_of(cls)
    if constant is not None:
        found[constant.name] = constant.value
    return found


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
