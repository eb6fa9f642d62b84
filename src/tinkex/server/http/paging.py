"""`limit` and `offset` of lists, and other numbers in a query."""

from __future__ import annotations

from starlette.requests import Request

from tinkex.server.errors import Unprocessable

_MOST = 1000


def page_of(request: Request, *, default: int) -> tuple[int, int]:
    """The limit (at most 1000) and the offset of a request.

    Raises:
        Unprocessable: one of them is not a number of 0 or more.
    """
    return min(number_of(request, "limit", default), _MOST), number_of(request, "offset", 0)


def number_of(request: Request, name: str, default: int) -> int:
    """The number under this name in the query.

    Raises:
        Unprocessable: it is not a number of 0 or more.
    """
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 12:
        raise Unprocessable(f"{name}={text[:40]!r} must be a number, 0 or more.")
    return int(text)
