"""`limit` and `offset` of lists."""

from __future__ import annotations

from starlette.requests import Request

from tinkex.server.errors import Unprocessable

_MOST = 1000


def page_of(request: Request, *, default: int) -> tuple[int, int]:
    """The limit (at most 1000) and the offset a request asks for.

    Raises:
        Unprocessable: one of them is not a number of 0 or more.
    """
    values = []
    for name, fallback in (("limit", default), ("offset", 0)):
        text = request.query_params.get(name, str(fallback))
        if not text.isdecimal() or len(text) > 12:
            raise Unprocessable(f"{name}={text[:40]!r} must be a number, 0 or more.")
        values.append(int(text))
    return min(values[0], _MOST), values[1]
