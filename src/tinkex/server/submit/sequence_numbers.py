"""Routes whose requests carry a model's sequence number.

A number that is refused for good is never sent again, and the official client goes on with the next
one. So whatever refuses such a request here, its number counts as used, and the operations behind
it do not wait. What a client tries again keeps its number.

A number that cannot be read is not used up, and those behind it wait for `hole_grace_s`: in a body
with an unknown Content-Encoding or a damaged first zstd block, in one that was never sent because
`Expect: 100-continue` was answered 413 for the declared length, and in a request that is refused
before a route is found (401 for the key, 431 for the headers).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.errors import TinkexError
from tinkex.server.errors import status_of
from tinkex.server.http.compression import PLAIN, encoding_of
from tinkex.server.http.headers import is_declared_json
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.body_progress import SeenBody
from tinkex.server.submit.model_submission import ModelSubmission, SeqWindow, seq_window
from tinkex.server.submit.peek import Target
from tinkex.server.submit.submission import ReadSubmission, submit_handler
from tinkex.store import models, operations
from tinkex.store.operations import NewOperation

__all__ = ["is_json", "numbered_route"]

Handler = Callable[[Request], Awaitable[Response]]

_RETRIED = frozenset({402, 408, 409, 429})
"""Statuses after which the official client sends the same request again, as after every 5xx."""


def numbered_route(path: str, read: ReadSubmission, *, may_be_protobuf: bool = False) -> Route:
    """The route of an operation of a model, whose body names the model and a number."""
    handle = submit_handler(read, ModelSubmission)
    return Route(path, _numbered(handle, may_be_protobuf=may_be_protobuf), methods=["POST"])


def _numbered(handle: Handler, *, may_be_protobuf: bool) -> Handler:

    @functools.wraps(handle)
    async def answer(request: Request) -> Response:
        services, me = services_of(request), owner(request)
        arrival = services.scheduler.arrival(me)
        seen = SeenBody(
            request.scope,
            is_json=not may_be_protobuf or is_json(request),
            is_packed=encoding_of(request.scope) not in PLAIN,
            on_target=lambda target: arrival.begin(target.model_id),
        )
        try:
            return await handle(request)
        except TinkexError as error:
            if _is_final(error) and (target := seen.find()) is not None:
                await _count_as_used(services, me, target)
            raise
        finally:
            arrival.end()
            seen.forget()

    return answer


def is_json(request: Request) -> bool:
    """Whether a training request is in the form of clients before 0.25."""
    return is_declared_json(request.scope)


def _is_final(error: TinkexError) -> bool:
    status = status_of(error)
    return status < 500 and status not in _RETRIED and not error.retryable


async def _count_as_used(services: Services, me: str, target: Target) -> None:
    refused = operations.nothing(me, target.model_id, target.seq_id)
    if await services.db.awrite(_consume, refused, seq_window(services, target.model_id)):
        services.scheduler.consume(target.model_id, target.seq_id)


def _consume(conn: Connection, refused: NewOperation, window: SeqWindow) -> bool:
    """Whether the number was free and the model is the caller's."""
    state = models.submit_state(conn, refused.owner, refused.model_id)
    if state is None or state.state == "ended" or window.ahead(conn, refused.seq_id) > 0:
        return False
    return operations.consume(conn, refused, "refused", trimmed_seq=state.trimmed_seq)
