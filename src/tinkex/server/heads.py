"""Heads of requests: a header found without building an object around all of them."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["CAME_WHOLE", "header"]

CAME_WHOLE = "came_whole"
"""In a request's state: its body was there together with its head."""


def header(scope: Scope, name: bytes, default: str = "") -> str:
    """The first header of this name, which is given in small letters."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found.decode("latin-1")
    return default
