"""The request and the response that an error speaks of, without an HTTP library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorRequest:
    """A request to a server, without headers and body, which may hold secrets."""

    method: str
    url: str


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """What a server answered, with the names that HTTP libraries give it."""

    status_code: int
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    request: ErrorRequest | None = None

    @property
    def content(self) -> bytes:
        """The body."""
        return self.text.encode()

    def json(self) -> Any:
        """The body read as JSON; a ValueError if it is none."""
        import json

        return json.loads(self.text)


def decoded(text: str) -> object:
    """A body: what it says if it is JSON, otherwise the text itself."""
    import json

    try:
        found: object = json.loads(text)
        return found
    except ValueError:
        return text
