"""How a request ends: errors as results, and results that are not lost while the disk is full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from tinkex.engine.interface import EngineError, EngineUserError, RequestError
from tinkex.errors import ClientError
from tinkex.store import StoreError
from tinkex.store.results import Result, error_result

_logger = logging.getLogger(__name__)

Publish = Callable[[dict[str, Result], set[str]], None]
"""Tells whoever waits that these results are kept, and which sampling sessions got some.

Called from the driver's thread.
"""


def failure_result(error: RequestError) -> Result:
    """The result of a request the engine refused or could not serve."""
    return error_result(error.message, category=error.kind, code=error.code)


def as_request_error(error: EngineUserError | ClientError) -> RequestError:
    """A user's mistake as plain data."""
    if isinstance(error, EngineUserError):
        return error.to_request_error()
    return RequestError(message=f"{error.message} {error.hint}".strip(), code=error.code)


def as_server_error(error: Exception) -> RequestError:
    """A failure that is not the user's as plain data; nothing internal is told."""
    if isinstance(error, EngineError):
        return msgspec.structs.replace(error.to_request_error(), kind="server")
    _logger.error("A request failed by an unexpected error.", exc_info=error)
    return RequestError(
        message="The server failed while working on the request. Send it anew.",
        code="server-error",
        kind="server",
    )


def keep_trying(write: Callable[[], object]) -> None:
    """Writes until the store takes it: the engine has moved on, so the result must not be lost."""
    wait_s = 0.1
    while True:
        try:
            write()
            return
        except StoreError as error:
            if error.code == "store-closed":
                raise
            _logger.error("A result could not be stored, trying again: %s", error.__cause__)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)
