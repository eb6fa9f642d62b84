"""Errors of requests that were accepted, and of waiting for their results."""

from __future__ import annotations

from typing import Literal

from tinkex.errors.base import TinkexError

ErrorCategory = Literal["user", "server", "unknown"]


class RequestFailedError(TinkexError):
    """The server accepted the request and then could not do it."""

    type = "request_failed"
    code = "request-failed"

    def __init__(
        self, message: str, request_id: str | None = None, category: ErrorCategory = "unknown"
    ) -> None:
        category = getattr(category, "value", category)  # the official one is an enum
        super().__init__(
            message,
            request_id=request_id,
            code=f"request-failed-{category}",
            hint=_CATEGORY_HINTS[category],
        )
        self.category = category
        self.blame = category


_CATEGORY_HINTS: dict[ErrorCategory, str] = {
    "user": "The request itself is at fault: correct it and send it anew.",
    "server": "The server failed while working on it: send it anew.",
    "unknown": "",
}


class PromiseLostError(TinkexError):
    """The server no longer knows a request it had accepted (410)."""

    type = "promise_lost"
    code = "promise-lost"
    blame = "server"
    retryable = True
    default_hint = (
        "Its result cannot be fetched any more. Load the last saved state before going on, since "
        "it is unknown whether the request was applied."
    )


class RecoveryFailedError(TinkexError):
    """A lost run could not be continued from a checkpoint."""

    type = "recovery_failed"
    code = "recovery-failed"
    blame = "server"
    default_hint = "Create a client from a checkpoint yourself, or start the run anew."


class FutureTimeoutError(TinkexError, TimeoutError):
    """The result was not there within the timeout; the work itself goes on."""

    type = "timeout"
    code = "future-timeout"
    blame = "unknown"
    retryable = True
    default_hint = "Call .result() again to go on waiting, or .cancel() to stop."


class FutureCancelledError(TinkexError):
    """The wait was cancelled."""

    type = "cancelled"
    code = "cancelled"
    blame = "user"


class WouldDeadlockError(TinkexError, RuntimeError):
    """A blocking wait on the very thread that must do the work."""

    type = "would_deadlock"
    code = "would-deadlock"
    blame = "user"
    default_hint = "Use 'await future' here, or call .result() from another thread."


class ClientClosedError(TinkexError, RuntimeError):
    """The client or its runtime has been closed."""

    type = "closed"
    code = "client-closed"
    blame = "user"
    default_hint = "Create a new ServiceClient."
