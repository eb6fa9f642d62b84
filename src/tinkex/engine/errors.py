"""The kinds of trouble an engine reports: the request was wrong, the engine was, or the disk.

    EngineError
    ├── EngineUserError       the request cannot be served as sent; sending it again changes nothing
    ├── EngineFailure         the engine could not serve a good request (died, no memory, bug)
    └── EngineStorageError    files could not be written or read; the engine itself is well

All cross the process border as `RequestError`, plain data, and are rebuilt on the other side.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "EngineError",
    "EngineFailure",
    "EngineStorageError",
    "EngineUserError",
    "RequestError",
]

STORAGE_CODES = frozenset({"disk-full", "disk-read-only", "disk-failed", "files-damaged"})


class RequestError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """One request's failure as a value: what a batch returns in place of that request's result.

    `field` names the offending part of the request ("data[3].inputs.weights") and `value` shows
    what stood there, shortened; both are empty when no single part is to blame.
    """

    message: str
    code: str
    kind: Literal["user", "server"] = "user"
    field: str = ""
    value: str = ""

    def to_exception(self) -> EngineError:
        """The exception that says the same thing."""
        if self.kind == "user":
            return EngineUserError(self.message, code=self.code, field=self.field, value=self.value)
        if self.code in STORAGE_CODES:
            return EngineStorageError(self.message, code=self.code, field=self.field)
        return EngineFailure(self.message, code=self.code)


class EngineError(Exception):
    """Base of everything an engine raises on purpose."""

    kind: Literal["user", "server"] = "server"

    def __init__(self, message: str, *, code: str, field: str = "", value: object = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.value = _shorten(value)

    def to_request_error(self) -> RequestError:
        """The same trouble as plain data."""
        return RequestError(
            message=self.message,
            code=self.code,
            kind=self.kind,
            field=self.field,
            value=self.value,
        )


class EngineUserError(EngineError, ValueError):
    """The request is wrong; the message names the part, the value and the remedy."""

    kind: Literal["user", "server"] = "user"


class EngineFailure(EngineError):
    """The engine failed at a request that may be fine; recover the engine, then send it again."""

    kind: Literal["user", "server"] = "server"

    def __init__(self, message: str, *, code: str = "engine-failure") -> None:
        super().__init__(message, code=code)


class EngineStorageError(EngineError, OSError):
    """Files could not be written, or are not as they were written; nothing of them was used.

    `code` is one of disk-full, disk-read-only, disk-failed, files-damaged; `field` names a file.
    """

    kind: Literal["user", "server"] = "server"


def _shorten(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
