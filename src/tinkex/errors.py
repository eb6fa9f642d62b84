"""Every error Tinkex raises, in one tree.

```
TinkexError                        anything below; `except TinkexError` catches all of it
├── ValidationError (ValueError)   your input, refused before any request was sent
│   ├── ConfigError                a setting is missing or malformed
│   ├── InvalidPathError           not a well-formed tinker:// path
│   └── TokenizerError             a tokenizer could not be found or loaded
├── APIError                       the server, or the way to it
│   ├── APIConnectionError         no complete answer came back
│   │   └── APITimeoutError        … within the time allowed
│   ├── APIResponseValidationError an answer came that the protocol does not allow
│   └── APIStatusError             an answer with an error status
│       ├── BadRequestError 400  ├── AuthenticationError 401 ├── BillingError 402
│       ├── PermissionDeniedError 403 ├── NotFoundError 404  ├── ConflictError 409
│       ├── GoneError 410        ├── UnprocessableEntityError 422
│       ├── RateLimitError 429   └── InternalServerError 5xx
├── RequestFailedError             the request was accepted, then failed (user / server / unknown)
├── PromiseLostError               the server no longer knows an accepted request
├── FutureTimeoutError (TimeoutError)    you stopped waiting; the work goes on
├── FutureCancelledError           you, or a closing client, cancelled the wait
├── WouldDeadlockError (RuntimeError)    a blocking wait on the thread that must do the work
├── ClientClosedError (RuntimeError)     the client or its runtime has been closed
├── ClientError                    raised by a server: becomes a 4xx answer
└── ServerError                    raised by a server: becomes a 5xx answer
```

Each error says what happened, with which values, whose turn it is (`blame`) and what to do next
(`hint`), and carries a stable `code`, the `request_id` where there is one, and `retryable`.
Knows nothing of HTTP libraries; nothing secret may be put into a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

Blame = Literal["user", "server", "network", "unknown"]
ErrorCategory = Literal["user", "server", "unknown"]


class TinkexError(Exception):
    """Anything that went wrong in Tinkex."""

    type: ClassVar[str] = "error"
    code: str = "error"
    blame: Blame = "unknown"
    retryable: bool = False
    default_hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.request_id = request_id
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        parts = [self.message]
        if self.hint:
            parts.append(self.hint)
        tags = [f"code: {self.code}"]
        if self.request_id:
            tags.append(f"request: {self.request_id}")
        return "\n  ".join(parts) + f"   [{' · '.join(tags)}]"

    def __reduce__(self) -> tuple[Callable[..., TinkexError], tuple[Any, ...]]:
        notes = getattr(self, "__notes__", None)
        state = {key: value for key, value in self.__dict__.items() if key != "__notes__"}
        return _rebuild, (self.__class__, self.message, state, notes)


def _rebuild(
    cls: type[TinkexError], message: str, state: dict[str, Any], notes: list[str] | None
) -> TinkexError:
    """An error as it was before pickling, whatever its constructor asks for."""
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    for note in notes or ():
        error.add_note(note)
    return error


class ValidationError(TinkexError, ValueError):
    """Your input cannot be used; nothing was sent."""

    type = "validation"
    code = "invalid-input"
    blame = "user"


class ConfigError(ValidationError):
    """A setting is missing or malformed."""

    code = "invalid-config"


class InvalidPathError(ValidationError):
    """A text is not a well-formed `tinker://` path."""

    code = "invalid-path"
    default_hint = (
        "Write tinker://<run>/<weights|sampler_weights|external_weights>/<name>; "
        "parts use letters, digits, '.', '_', '-' (and ':' in run ids) and start with a letter "
        "or digit."
    )


class TokenizerError(ValidationError):
    """A tokenizer could not be found or loaded."""

    code = "tokenizer-unavailable"


class APIError(TinkexError):
    """The server, or the way to it, failed."""

    type = "api"
    code = "api-error"


class APIConnectionError(APIError):
    """No complete answer came back."""

    type = "api_connection"
    code = "connection-failed"
    blame = "network"
    retryable = True
    default_hint = "Check that the server is running and that base_url is right, then try again."


class APITimeoutError(APIConnectionError):
    """No complete answer came back in time."""

    type = "api_timeout"
    code = "request-timeout"
    default_hint = "The server may be busy; try again, or raise the timeout."


class APIResponseValidationError(APIError):
    """The server's answer does not follow the protocol."""

    type = "api_response"
    code = "invalid-response"
    blame = "server"
    default_hint = "The server may speak another version of the protocol; check base_url."


class APIStatusError(APIError):
    """The server answered with an error status."""

    type = "api_status"
    code = "http-error"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        body: str = "",
        retry_after_s: float | None = None,
        hint: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code, request_id=request_id, retryable=retryable)
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s

    @property
    def status_code(self) -> int:
        """The HTTP status, under the official SDK's name."""
        return self.status


class BadRequestError(APIStatusError):
    """400: the server could not use the request."""

    code = "bad-request"
    blame = "user"


class AuthenticationError(APIStatusError):
    """401: the API key is missing, unknown or revoked."""

    code = "unauthenticated"
    blame = "user"
    default_hint = "Set TINKER_API_KEY (keys start with 'tml-') or pass api_key=."


class BillingError(APIStatusError):
    """402: the account cannot pay for this."""

    code = "billing"
    blame = "user"


class PermissionDeniedError(APIStatusError):
    """403: the key may not do this."""

    code = "forbidden"
    blame = "user"


class NotFoundError(APIStatusError):
    """404: no such thing, or it belongs to somebody else."""

    code = "not-found"
    blame = "user"


class ConflictError(APIStatusError):
    """409: the request collides with the present state."""

    code = "conflict"
    blame = "user"
    retryable = True


class GoneError(APIStatusError):
    """410: it existed and is over."""

    code = "gone"
    blame = "server"


class UnprocessableEntityError(APIStatusError):
    """422: understood, but the content is refused."""

    code = "unprocessable"
    blame = "user"


class RateLimitError(APIStatusError):
    """429: too much at once."""

    code = "rate-limited"
    blame = "user"
    retryable = True
    default_hint = (
        "Wait for retry_after_s and send it again; sampling is never retried for you unless "
        "you pass retry=RetryPolicy(...)."
    )


class InternalServerError(APIStatusError):
    """5xx: the server failed."""

    code = "server-error"
    blame = "server"
    retryable = True
    default_hint = "Try again; if it stays, tell the operator of the server."


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error_class(status: int) -> type[APIStatusError]:
    """The class for an HTTP error status."""
    if status >= 500:
        return InternalServerError
    return _BY_STATUS.get(status, APIStatusError)


class RequestFailedError(TinkexError):
    """The server accepted the request and then could not do it."""

    type = "request_failed"
    code = "request-failed"

    def __init__(
        self, message: str, *, category: ErrorCategory = "unknown", request_id: str | None = None
    ) -> None:
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


class ClientError(TinkexError):
    """Raised inside a server for what the caller must change; becomes a 4xx answer."""

    type = "client_error"
    code = "bad-request"
    blame = "user"
    status: int = 400


class ServerError(TinkexError):
    """Raised inside a server for what the caller cannot help; becomes a 5xx answer."""

    type = "server_error"
    code = "server-error"
    blame = "server"
    retryable = True
    status: int = 500


TinkerError = TinkexError
"""The official SDK's name for the root of its tree."""

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "BillingError",
    "Blame",
    "ClientClosedError",
    "ClientError",
    "ConfigError",
    "ConflictError",
    "ErrorCategory",
    "FutureCancelledError",
    "FutureTimeoutError",
    "GoneError",
    "InternalServerError",
    "InvalidPathError",
    "NotFoundError",
    "PermissionDeniedError",
    "PromiseLostError",
    "RateLimitError",
    "RequestFailedError",
    "ServerError",
    "TinkerError",
    "TinkexError",
    "TokenizerError",
    "UnprocessableEntityError",
    "ValidationError",
    "WouldDeadlockError",
    "status_error_class",
]
