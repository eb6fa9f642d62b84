"""The built-in losses: one module each, found by looking into this folder.

A module here holds one `LOSS`. Adding a file adds a loss.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from tinkex.losses.declaration import Loss

__all__ = ["BUILT_IN"]


def _found() -> dict[str, Loss]:
    modules = sorted(each.name for each in pkgutil.iter_modules(__path__))
    losses: list[Loss] = [importlib.import_module(f"{__name__}.{name}").LOSS for name in modules]
    return {loss.name: loss for loss in losses}


BUILT_IN: Mapping[str, Loss] = MappingProxyType(_found())
"""Every built-in loss by its name, in alphabetical order."""
