"""What the server does now, for tenants and for operators."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import json_response
from tinkex.server.monitoring.status import StatusBoard
from tinkex.server.services import owner


async def status(request: Request) -> Response:
    """What the server does now: engine, queue, tokens per second, memory, disk; of other tenants
    nothing but totals."""
    return json_response(await _board(request).of_tenant(owner(request)))


async def operator_status(request: Request) -> Response:
    """The same with the unfinished work of each tenant and all that is known of each worker."""
    return json_response(await _board(request).of_operator())


def _board(request: Request) -> StatusBoard:
    found: StatusBoard = request.scope["app"].state.status_board
    return found


ROUTES = [
    Route("/status", status),
    Route("/operator/status", operator_status),
]
