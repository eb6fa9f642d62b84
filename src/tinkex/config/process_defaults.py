"""Defaults of this process in place of a setting's own; whatever gives a value still wins."""

from __future__ import annotations

from typing import Any

from tinkex.config.setting import Setting

__all__ = ["default_of", "set_process_default", "unset_process_default"]

_CHANGED: dict[str, tuple[Any, str]] = {}


def set_process_default(name: str, value: Any, origin: str) -> None:
    """Configs that are made from now on have this value unless it is given; `origin` says why."""
    _CHANGED[name] = value, origin


def unset_process_default(name: str) -> None:
    """Configs that are made from now on have the setting's own default again."""
    _CHANGED.pop(name, None)


def default_of(setting: Setting[Any]) -> tuple[Any, str]:
    """The value of a setting that nothing gives, and its origin."""
    return _CHANGED.get(setting.name, (setting.default, "default"))
