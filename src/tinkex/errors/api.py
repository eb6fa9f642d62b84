"""Errors of the server, or of the way to it."""

from __future__ import annotations

from typing import Any

from tinkex.errors.base import TinkexError
from tinkex.errors.http import decoded


class APIError(TinkexError):
    """The server, or the way to it, failed.

    `request` and `response` are what the error speaks of, where they are known; `body` is the
    answer's, decoded if it is JSON.
    """

    type = "api"
    code = "api-error"

    def __init__(
        self,
        message: str,
        request: Any = None,
        *,
        response: Any = None,
        body: object = None,
        hint: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code, request_id=request_id, retryable=retryable)
        self.request = request if request is not None else getattr(response, "request", None)
        self.response = response
        self.body = decoded(body) if isinstance(body, str) else body


class APIConnectionError(APIError):
    """No complete answer came back."""

    type = "api_connection"
    code = "connection-failed"
    blame = "network"
    retryable = True
    default_hint = "Check that the server is running and that base_url is right, then try again."
    default_message = "The server could not be reached."

    def __init__(self, message: Any = None, request: Any = None, **about: Any) -> None:
        """Takes the official order as well, in which the request comes first."""
        if message is not None and not isinstance(message, str):
            message, request = request, message
        super().__init__(message or self.default_message, request, **about)


class APITimeoutError(APIConnectionError):
    """No complete answer came back in time."""

    type = "api_timeout"
    code = "request-timeout"
    default_hint = "The server may be busy; try again, or raise the timeout."
    default_message = "The request timed out."


class APIResponseValidationError(APIError):
    """The server's answer does not follow the protocol."""

    type = "api_response"
    code = "invalid-response"
    blame = "server"
    default_hint = "The server may speak another version of the protocol; check base_url."

    def __init__(
        self, response: Any, body: object = None, message: str | None = None, **about: Any
    ) -> None:
        """Takes a message alone, or a response, its body and a message as the official class."""
        if isinstance(response, str):
            response, message = None, response
        text = message or "The server's answer does not follow the protocol."
        super().__init__(text, response=response, body=body, **about)
        self.status_code: int | None = getattr(response, "status_code", None)


class APIStatusError(APIError):
    """The server answered with an error status."""

    type = "api_status"
    code = "http-error"

    def __init__(
        self,
        message: str,
        response: Any = None,
        body: object = None,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        **about: Any,
    ) -> None:
        super().__init__(message, response=response, body=body, **about)
        self.status: int = status if status is not None else response.status_code
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
    """404: it does not exist, or another owner has it."""

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
    default_hint = "Retry; if it fails again, contact the operator of the server."


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
