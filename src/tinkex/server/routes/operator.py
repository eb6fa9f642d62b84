"""What operators see and do: the workers, what waits for them, and draining one.

Behind the operator's token (`gate.operator_token`), not behind a tenant's key.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.engine.interface import EngineUserError
from tinkex.scheduler.workers import Workers
from tinkex.server.errors import LastWorker, NotFound, json_response
from tinkex.server.services import services_of

_SHOWN_CHARS = 100


async def workers(request: Request) -> Response:
    """The workers, what each does now, and the work that waits."""
    found = services_of(request).scheduler.workers
    entries, waiting = await asyncio.to_thread(lambda: (found.list(), found.waiting()))
    return json_response({"workers": entries, "waiting": waiting})


async def drain(request: Request) -> Response:
    """Has a worker give its models to others, and take no work until it is resumed."""
    found = services_of(request).scheduler.workers
    slot_id = _slot_of(found, request)
    try:
        await asyncio.to_thread(found.drain, slot_id)
    except EngineUserError as error:
        raise LastWorker(error.message) from error
    return json_response(await asyncio.to_thread(found.info, slot_id))


async def resume(request: Request) -> Response:
    """Has a worker that was drained take work again."""
    found = services_of(request).scheduler.workers
    slot_id = _slot_of(found, request)
    await asyncio.to_thread(found.resume, slot_id)
    return json_response(await asyncio.to_thread(found.info, slot_id))


def _slot_of(found: Workers, request: Request) -> int:
    name = request.path_params["name"]
    slot_id = found.find(name)
    if slot_id is None:
        raise NotFound(
            f"There is no worker {name[:_SHOWN_CHARS]!r}.",
            hint="'tinkex workers' lists them.",
            code="unknown-worker",
        )
    return slot_id


ROUTES = [
    Route("/operator/workers", workers),
    Route("/operator/workers/{name}/drain", drain, methods=["POST"]),
    Route("/operator/workers/{name}/resume", resume, methods=["POST"]),
]
