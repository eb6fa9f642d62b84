"""A server that waits for the leader's lease.

It listens meanwhile, so that it can be probed: `/healthz` and all routes but the version are
answered 503 with the code `standby` and the time after which to try again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinkex.server.config import ConnectionBounds
from tinkex.server.errors import Standby, error_response, json_response
from tinkex.server.http.headers import HeadMiddleware
from tinkex.server.leadership import ALIVE_PATH, described
from tinkex.server.listen.connections import protocol_class
from tinkex.server.listen.uvicorn_server import HttpServer
from tinkex.store.leader_lease import LeaderLease
from tinkex.version import PROTOCOL_VERSION, __version__

__all__ = ["wait_for_lease"]

_LOOK_EVERY_S = 0.5
_START_TICK_S = 0.01
_CLOSE_S = 1  # for requests that are being answered when the lease is taken

_logger = logging.getLogger(__name__)


async def wait_for_lease(
    lease: LeaderLease,
    listener: socket.socket,
    bounds: ConnectionBounds,
    is_over: Callable[[], bool],
) -> bool:
    """Whether the lease was taken; False if the wait was over before."""
    config = uvicorn.Config(
        HeadMiddleware(_answer, bounds),
        http=protocol_class(bounds),
        h11_max_incomplete_event_size=bounds.max_head_bytes,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_CLOSE_S,
        server_header=False,
        ws="none",
    )
    http = HttpServer(config, lambda: None)
    # A copy, because uvicorn closes what it listens on: the listener is the leader's later on.
    serving = asyncio.create_task(http.serve(sockets=[listener.dup()]))
    attempts = _Attempts(lease)
    try:
        while not is_over():
            # A server that is drained before it has started would leave its socket open.
            if http.started and await attempts.take():
                return True
            await asyncio.sleep(_LOOK_EVERY_S if http.started else _START_TICK_S)
        return False
    finally:
        http.drain()
        await serving


class _Attempts:
    """Tries to take the lease; says once that the database is away, however long that lasts."""

    def __init__(self, lease: LeaderLease) -> None:
        self._lease = lease
        self._is_reached = True

    async def take(self) -> bool:
        """Whether the lease was taken now."""
        try:
            before = await asyncio.to_thread(self._lease.read)
            is_taken = await asyncio.to_thread(self._lease.take)
        except SQLAlchemyError as error:
            if self._is_reached:
                _logger.warning("The database was not reached; trying again: %s", error)
            self._is_reached = False
            return False
        self._is_reached = True
        if is_taken:
            whose = f", which was of {described(before)}" if before.epoch else ""
            _logger.warning("This server leads now: it has taken the lease%s.", whose)
        return is_taken


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a standby."""
    await _response(Request(scope))(scope, receive, send)


def _response(request: Request) -> Response:
    if request.url.path == ALIVE_PATH:
        return json_response({"version": __version__, "protocol": PROTOCOL_VERSION})
    return error_response(
        Standby("This server stands by; another one leads."), {"status": "standby"}
    )
