"""How a request ends: errors as results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from tinkex.engine.errors import request_error
from tinkex.engine.interface import EngineError, EngineUserError, RequestError
from tinkex.errors import ClientError
from tinkex.files.errors import StorageError
from tinkex.store.operations import Operation
from tinkex.store.results import Result, error_result

MAX_OUTSIDE_LOSSES = 3
"""How often the engine may hang, or the connection to it end, over a request before the request
counts as the cause: mostly the process was stopped or cut off from outside."""

_logger = logging.getLogger(__name__)

Publish = Callable[[dict[str, Result], set[str]], None]
"""Announces results that are in the store, and the sampling sessions that got some.

Called from the threads of the engine slots and of the sample result writer.
"""

Announce = Callable[[list[Operation], Literal["queued", "running", "done", "failed"]], None]
"""Announces how operations ended. Called from any thread; must return at once."""


def failure_result(error: RequestError) -> Result:
    """The result of a request the engine refused or could not serve."""
    return error_result(error.message, category=error.kind, code=error.code)


def as_request_error(error: EngineUserError | StorageError | ClientError) -> RequestError:
    """A user's mistake, or an error of files, as plain data."""
    if isinstance(error, EngineUserError | StorageError):
        return request_error(error)
    return RequestError(message=f"{error.message} {error.hint}".strip(), code=error.code)


def as_server_error(error: Exception) -> RequestError:
    """A failure that is not the user's as plain data, without internals."""
    if isinstance(error, EngineError | StorageError):
        return msgspec.structs.replace(request_error(error), kind="server")
    _logger.error("A request failed by an unexpected error.", exc_info=error)
    return RequestError(
        message="The server failed while working on the request. Send it again.",
        code="server-error",
        kind="server",
    )
