"""Defaults that are written on the wire."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def sent(value: T) -> T:
    """Returns a default that is written out, in a struct whose other defaults (None) are left out.

    The protocol omits absent values but names every default. A struct says so with
    `omit_defaults=True`, which spares defaults made by a factory.
    """
    return msgspec.field(default_factory=lambda: value)
