"""Errors as answers: `{"detail": ..., "code": ..., "hint": ...}` with the status of the class.

A permanent refusal is never a 409, which the official client retries for five minutes.
"""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tinkex.errors import ClientError, ServerError, TinkexError, ValidationError
from tinkex.files.errors import StorageError
from tinkex.store import StoreError
from tinkex.wire import json

_logger = logging.getLogger(__name__)


_SHOWN_CHARS = 2000


class NotFound(ClientError):
    """404: it does not exist, or another owner has it."""

    code = "not-found"
    status = 404


class Unauthenticated(ClientError):
    """401: the key is missing, unknown or revoked."""

    code = "unauthenticated"
    status = 401
    default_hint = (
        "Send a key of this server in X-API-Key, or as 'Authorization: Bearer'; "
        "'tinkex keys create' makes one."
    )


class NotAnOperator(Unauthenticated):
    """401: the operator's token is missing or wrong."""

    code = "not-an-operator"
    default_hint = (
        "Send the first word of the file operator-token in the server's data folder in "
        "X-Operator-Token; an API key does not open this route."
    )


class LastWorker(ClientError):
    """400: the worker cannot be drained, because no other one would take its models."""

    code = "last-worker"
    status = 400
    default_hint = "Start another worker, or resume one that is drained."


class Unprocessable(ClientError):
    """422: understood, but refused."""

    code = "unprocessable"
    status = 422


class LimitExceeded(ClientError):
    """422: above one of this server's limits, which `get_server_capabilities` lists."""

    code = "limit-exceeded"
    status = 422


class TooLarge(ClientError):
    """413: the body is larger than its route takes."""

    code = "body-too-large"
    status = 413


class HeadTooLarge(ClientError):
    """431: too many headers, or too long ones."""

    code = "head-too-large"
    status = 431


class MalformedRequest(ClientError):
    """400: the bytes are not a request of HTTP/1.1; the connection is closed."""

    code = "malformed-request"
    status = 400
    default_hint = "Use a client that speaks HTTP/1.1; TLS only to a proxy that ends it."


class UnknownTransferCoding(ClientError):
    """501: the body comes in a Transfer-Encoding that is not understood; the connection is closed.

    The status is HTTP's own for this case, although clients retry a 5xx: no client of the protocol
    sends such a body.
    """

    code = "unknown-transfer-coding"
    status = 501
    default_hint = "Send the body with a Content-Length, or as 'Transfer-Encoding: chunked' alone."


class WrongHost(ClientError):
    """421: the page was requested under a host name that this server does not accept."""

    code = "wrong-host"
    status = 421
    default_hint = (
        "Open it by the server's IP address, or start the server with --allowed-hosts NAME or "
        "--public-url."
    )


class BadRange(ClientError):
    """400: the Range header of a download is not understood."""

    code = "bad-range"
    status = 400
    default_hint = "Write it as 'bytes=FIRST-LAST', or leave it out to get the whole file."


class RangeNotSatisfiable(ClientError):
    """416: the file has no such bytes; Content-Range says how long it is."""

    code = "range-not-satisfiable"
    status = 416
    default_hint = "Request bytes below the size in Content-Range."


class Gone(ClientError):
    """410: it existed and is over."""

    code = "gone"
    status = 410


class NotSupported(ClientError):
    """404: a part of the protocol that has no meaning on this server.

    Not 501, which the official client would retry for five minutes like any 5xx.
    """

    code = "not-supported"
    status = 404


class Busy(ClientError):
    """429: too much at once; the same request will do later."""

    code = "busy"
    status = 429
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.retry_after_s = retry_after_s


class NotReady(ServerError):
    """503: the server is starting or stopping."""

    code = "not-ready"
    status = 503
    retry_after_s = 2.0
    default_hint = "Try again in a few seconds."


class Standby(NotReady):
    """503: this server waits for the leader's lease; another one answers requests."""

    code = "standby"
    retry_after_s = 1.0
    default_hint = "Send requests to the server that leads; clients try again by themselves."


class LeaseNotRenewed(NotReady):
    """503: the server could not renew its lease in time, so another one may lead by now."""

    code = "lease-not-renewed"
    retry_after_s = 1.0
    default_hint = "Try again; clients do so by themselves."


class OverCapacity(ServerError):
    """503: the server has as much to do as it can take."""

    code = "over-capacity"
    status = 503
    retry_after_s = 1.0
    default_hint = "Try again; clients do so by themselves."


class DiskLow(ServerError):
    """503: the disk is all but full."""

    code = "disk-full"
    status = 503
    retry_after_s = 5.0
    default_hint = (
        "Delete checkpoints that are not needed ('tinkex checkpoint delete' works on a full disk), "
        "or try again later; the server goes on by itself once there is space."
    )


def status_of(error: TinkexError) -> int:
    """The HTTP status of the answer to an error."""
    status: int = getattr(error, "status", 422 if isinstance(error, ValidationError) else 500)
    return status


def error_response(error: TinkexError, more: dict[str, object] | None = None) -> Response:
    """The answer that says what the error says, and `more` fields beside it."""
    status = status_of(error)
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["retry-after"] = f"{retry_after_s:g}"
    # A message may quote what was sent, which may be long: it is not sent back whole.
    detail = error.message if len(error.message) <= _SHOWN_CHARS else _cut(error.message)
    fields = {"detail": detail, "code": error.code, "hint": error.hint, **(more or {})}
    return json_response(fields, status=status, headers=headers)


def closing_response(error: TinkexError) -> Response:
    """The same, as the last answer on its connection."""
    answer = error_response(error)
    answer.headers["connection"] = "close"
    return answer


def _cut(message: str) -> str:
    return f"{message[: _SHOWN_CHARS // 2]} … {message[-_SHOWN_CHARS // 2 :]}"


def json_response(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A JSON answer."""
    return Response(json.encode(value), status, headers, "application/json")


async def on_tinkex_error(_request: Request, error: Exception) -> Response:
    """The answer to an error of ours."""
    assert isinstance(error, TinkexError)
    if isinstance(error, StoreError):  # it may be every request for a while
        _logger.error("%s (%s)", error.message, error.__cause__)
    elif isinstance(error, ServerError) and not isinstance(error, NotReady | DiskLow):
        _logger.error("%s", error, exc_info=error)
    return error_response(error)


async def on_storage_error(_request: Request, error: Exception) -> Response:
    """The answer when files cannot be written now, or are not as they were written."""
    assert isinstance(error, StorageError)
    _logger.error("%s", error)
    if error.code == "files-damaged":  # for good, so nothing a client would try again
        return error_response(Unprocessable(error.message, code=error.code))
    return error_response(StoreError(error.message, code=error.code))


async def on_http_error(_request: Request, error: Exception) -> Response:
    """The answer to a wrong path or method."""
    assert isinstance(error, HTTPException)
    names = {404: "no-such-route", 405: "wrong-method"}
    fields = {
        "detail": str(error.detail),
        "code": names.get(error.status_code, "http-error"),
        "hint": "",
    }
    return json_response(fields, status=error.status_code, headers=dict(error.headers or {}))


async def on_unexpected(_request: Request, error: Exception) -> Response:
    """The answer to an unexpected error; it has no internal details."""
    _logger.exception("A request failed by an unexpected error.", exc_info=error)
    return error_response(ServerError("The server made a mistake and has logged it."))
