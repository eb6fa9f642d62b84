"""Errors of looking for a request and its result."""

from __future__ import annotations

from tinkex.server.config import ServerConfig
from tinkex.server.errors import Gone, NotFound

__all__ = ["result_dropped", "unknown_request"]


def unknown_request(request_id: str) -> NotFound:
    """There is no such request, or another owner has it."""
    return NotFound(f"There is no request {request_id[:100]!r}.", code="unknown-request")


def result_dropped(config: ServerConfig, request_id: str) -> Gone:
    """The request was done, and its result is trimmed."""
    return Gone(
        f"The result of {request_id} is no longer kept: results stay for "
        f"{config.result_life_s / 3600:g} hours, and the oldest of a tenant go earlier when its "
        f"results take more than {config.max_result_bytes:,} bytes.",
        hint="Fetch results soon after they are made; the operation itself was done once.",
        code="result-dropped",
    )
