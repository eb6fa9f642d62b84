"""Errors raised inside a server, which become its answers."""

from __future__ import annotations

from tinkex.errors.base import TinkexError


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
