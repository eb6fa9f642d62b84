"""Errors of codecs for malformed bytes: one kind on the client, another on the server."""

from __future__ import annotations

from tinkex.errors import APIResponseValidationError, ClientError


class Malformed(Exception):
    """Malformed bytes. Never leaves `tinkex.wire`."""


def invalid_body(message: str, field: str = "") -> ClientError:
    """Returns the server's error for an unreadable body: 422, with the path
    of the offending field."""
    error = ClientError(
        f"The request body is not valid: {message}{_at(field)}.", code="invalid-body"
    )
    error.status = 422
    error.field = field  # type: ignore[attr-defined]
    return error


def invalid_response(type_name: str, message: str, field: str = "") -> APIResponseValidationError:
    """Returns the client's error for an unreadable response."""
    return APIResponseValidationError(
        f"The server's answer is not a valid {type_name}: {message}{_at(field)}."
    )


def _at(field: str) -> str:
    return f" (at {field})" if field else ""
