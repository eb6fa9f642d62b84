"""The paths of the OpenAI endpoint, for what treats them differently before a route is found."""

from __future__ import annotations

from typing import Final

__all__ = ["PREFIXES", "SAMPLING_PATHS", "is_openai_path"]

PREFIXES: Final = ("/v1", "/oai/api/v1")
"""Where the endpoint is found: as clients expect it, and as the hosted service has it."""

SAMPLING_PATHS: Final = frozenset(
    f"{prefix}/{name}" for prefix in PREFIXES for name in ("chat/completions", "completions")
)
"""Requests that sample. They are answered when the result is there, not when it is promised."""

_STARTS: Final = tuple(f"{prefix}/" for prefix in PREFIXES)


def is_openai_path(path: str) -> bool:
    """Whether a request to this path is answered in OpenAI's form, its errors included."""
    return path.startswith(_STARTS)
