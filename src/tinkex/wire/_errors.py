"""How a codec says that bytes are wrong: one way on the client, another on the server."""

from __future__ import annotations

from tinkex.errors import APIResponseValidationError, ClientError


class Malformed(Exception):
    """Bytes that are not what they should be. Never leaves `tinkex.wire`."""


def invalid_body(message: str, field: str = "") -> ClientError:
    """What a server raises for a body it cannot read: 422, with the path of the offending field."""
    error = ClientError(
        f"The request body is not valid: {message}{_at(field)}.", code="invalid-body"
    )
    error.status = 422
    error.field = field  # type: ignore[attr-defined]
    return error


def invalid_response(type_name: str, message: str, field: str = "") -> APIResponseValidationError:
    """What a client raises for an answer it cannot read."""
    return APIResponseValidationError(
        f"The server's answer is not a valid {type_name}: {message}{_at(field)}."
    )


def _at(field: str) -> str:
    return f" (at {field})" if field else ""
