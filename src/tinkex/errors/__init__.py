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
├── RecoveryFailedError            a lost run could not be continued from a checkpoint
├── FutureTimeoutError (TimeoutError)    you stopped waiting; the work goes on
├── FutureCancelledError           you, or a closing client, cancelled the wait
├── WouldDeadlockError (RuntimeError)    a blocking wait on the thread that must do the work
├── ClientClosedError (RuntimeError)     the client or its runtime has been closed
├── ClientError                    raised by a server: becomes a 4xx answer
└── ServerError                    raised by a server: becomes a 5xx answer
```

Each error says what happened, with which values, who has to act (`blame`) and what to do next
(`hint`), and carries a stable `code`, the `request_id` where there is one, and `retryable`.
Knows nothing of HTTP libraries; nothing secret may be put into a message.
"""

from __future__ import annotations

from tinkex.errors.api import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    BillingError,
    ConflictError,
    GoneError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    UnprocessableEntityError,
    status_error_class,
)
from tinkex.errors.base import (
    Blame,
    ConfigError,
    ExperimentalWarning,
    InvalidPathError,
    TinkexError,
    TokenizerError,
    ValidationError,
)
from tinkex.errors.http import ErrorRequest, ErrorResponse
from tinkex.errors.operations import (
    ClientClosedError,
    ErrorCategory,
    FutureCancelledError,
    FutureTimeoutError,
    PromiseLostError,
    RecoveryFailedError,
    RequestFailedError,
    WouldDeadlockError,
)
from tinkex.errors.server import ClientError, ServerError

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
    "ErrorRequest",
    "ErrorResponse",
    "ExperimentalWarning",
    "FutureCancelledError",
    "FutureTimeoutError",
    "GoneError",
    "InternalServerError",
    "InvalidPathError",
    "NotFoundError",
    "PermissionDeniedError",
    "PromiseLostError",
    "RateLimitError",
    "RecoveryFailedError",
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
