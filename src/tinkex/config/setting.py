"""One setting of a client: its default, its environment names, how its value is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast, overload

from tinkex.telemetry.redaction import Secret

__all__ = ["FieldInfo", "Setting"]

T = TypeVar("T")

_OFFICIAL_ENV: Final = {
    "api_key": "TINKER_API_KEY",
    "base_url": "TINKER_BASE_URL",
    "project_id": "TINKER_PROJECT_ID",
    "tags": "TINKER_TAGS",
    "log_level": "TINKER_LOG",
}


class HasValues(Protocol):
    """What settings are attributes of."""

    _values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One setting, described for documentation and for `tinkex config show`."""

    name: str
    type: str
    default: object
    env: tuple[str, ...]
    doc: str


class Setting(Generic[T]):
    """A read-only attribute of Config: its default, how its value is read, and what it means."""

    def __init__(self, type: str, default: T, parse: Callable[[Any], T], doc: str) -> None:
        self.type = type
        self.default = default
        self.parse = parse
        self.doc = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        official = (_OFFICIAL_ENV[name],) if name in _OFFICIAL_ENV else ()
        self.env: tuple[str, ...] = (f"TINKEX_{name.upper()}", *official)

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: HasValues, owner: type) -> T: ...
    def __get__(self, config: HasValues | None, owner: type) -> Self | T:
        if config is None:
            return self
        value: Any = config._values[self.name]
        if isinstance(value, Secret):
            value = value.reveal()
        return cast("T", dict(value) if isinstance(value, dict) else value)
