"""How a request ends: errors as results, and retries while the store fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tinkex.engine.errors import request_error
from tinkex.engine.interface import EngineError, EngineUserError, RequestError
from tinkex.errors import ClientError
from tinkex.files.errors import StorageError
from tinkex.store import StoreError
from tinkex.store.results import Result, error_result

T = TypeVar("T")

MAX_HANGS = 3
"""How often the engine may hang over a request before the request counts as the cause: mostly the
process was stopped from outside."""

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0

_logger = logging.getLogger(__name__)

Publish = Callable[[dict[str, Result], set[str]], None]
"""Announces results that are in the store, and the sampling sessions that got some.

Called from the threads of the engine slots and of the sample result writer.
"""


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
        message="The server failed while working on the request. Send it anew.",
        code="server-error",
        kind="server",
    )


def keep_trying(ask_store: Callable[[], T], is_over: Callable[[], bool]) -> T:
    """What the store answers, retried until it does: its errors are no request's fault, and what
    the engine has computed must not be lost.

    Raises:
        StoreError: the server is ending, or the store was closed.
    """
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return ask_store()
        except StoreError as error:
            if error.code == "store-closed" or is_over():
                raise
            _logger.error("The store fails; retrying: %s", error.__cause__ or error)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
