"""Errors an engine reports.

    EngineError
    ├── EngineUserError       the request cannot be served as sent; sending it again changes nothing
    └── EngineFailure         the engine could not serve a good request (died, no memory, bug)
    StorageError              files could not be written or read (see `tinkex.files.errors`)

All cross the process boundary as `RequestError`, plain data, and are rebuilt on the other side.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tinkex.files.errors import STORAGE_CODES, StorageError

__all__ = [
    "EngineError",
    "EngineFailure",
    "EngineUserError",
    "RequestError",
    "request_error",
    "unknown_name",
]


class RequestError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """One request's failure as a value: what a batch returns in place of that request's result.

    `field` names the offending part of the request ("data[3].inputs.weights") and `value` is its
    value, shortened; both are empty when no single part caused it.
    """

    message: str
    code: str
    kind: Literal["user", "server"] = "user"
    field: str = ""
    value: str = ""

    def to_exception(self) -> EngineError | StorageError:
        """Returns the exception for this failure."""
        if self.kind == "user":
            return EngineUserError(self.message, code=self.code, field=self.field, value=self.value)
        if self.code in STORAGE_CODES:
            return StorageError(self.message, code=self.code, field=self.field)
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
        """Returns the same failure as plain data."""
        return RequestError(
            message=self.message,
            code=self.code,
            kind=self.kind,
            field=self.field,
            value=self.value,
        )


class EngineUserError(EngineError, ValueError):
    """The request is wrong; the message names the part, its value, and how to correct it."""

    kind: Literal["user", "server"] = "user"


class EngineFailure(EngineError):
    """The engine failed at a request that may be fine; recover the engine, then send it again."""

    kind: Literal["user", "server"] = "server"

    def __init__(self, message: str, *, code: str = "engine-failure") -> None:
        super().__init__(message, code=code)

    @property
    def is_loss_of_engine(self) -> bool:
        """Whether the engine itself is lost, with all adapters and samplers it held."""
        return self.code == "engine-died" or self.is_from_outside

    @property
    def is_from_outside(self) -> bool:
        """Whether the cause of the loss is mostly outside the engine, so that its work is rarely to
        blame: it did not answer (its process was stopped), or the connection to a remote worker
        ended (the network failed, or its machine was removed).
        """
        return self.code in ("engine-hung", "engine-disconnected")


class NoWorkerError(EngineFailure):
    """No worker has connected for this slot yet; one may connect at any time."""


class ServerEndingError(EngineFailure):
    """The server is ending and starts no engine any more."""


def server_ending() -> ServerEndingError:
    """Returns the error of a start that is aborted because the server is ending."""
    return ServerEndingError("The server is ending.", code="server-ending")


def request_error(error: EngineError | StorageError) -> RequestError:
    """Returns the same error as plain data."""
    if isinstance(error, EngineError):
        return error.to_request_error()
    return RequestError(message=error.message, code=error.code, kind="server", field=error.field)


def failure_of(what: str, error: Exception) -> EngineFailure:
    """Returns the `EngineFailure` for an unexpected exception in a computation."""
    return EngineFailure(f"{what} ({type(error).__name__}: {error}). Nothing was changed; retry.")


def unknown_name(what: str, name: str) -> EngineUserError:
    """Returns the error for a model, adapter or sampler that the engine does not have."""
    return EngineUserError(
        f"There is no {what} {name!r} in this engine.",
        code=f"unknown-{what}",
        field=what,
        value=name,
    )


def _shorten(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
