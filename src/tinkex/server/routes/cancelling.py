"""Cancelling work: one request, what waits of a run, or all samples of the caller."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import NotFound, Unprocessable, json_response
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.model_submission import require_model
from tinkex.store import results
from tinkex.store.request_ids import was_made_for
from tinkex.types.requests import CancelRequest


async def cancel(request: Request) -> Response:
    """Cancels samples that wait or run, and training operations that wait; says how many."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, CancelRequest, services.config.limits)
    named = [payload.request_id is not None, payload.run_id is not None, payload.samples]
    if sum(named) != 1:
        raise Unprocessable(
            "The body must have exactly one of request_id, run_id and samples=true."
        )
    samples = operations = 0
    if payload.request_id is not None:
        samples, operations = await _cancel_request(services, me, payload.request_id)
    elif payload.run_id is not None:
        await require_model(services, me, payload.run_id)
        operations = await asyncio.to_thread(
            services.scheduler.operation_cancelling.cancel_run, me, payload.run_id
        )
    else:
        samples = await asyncio.to_thread(services.scheduler.sample_cancelling.cancel_all, me)
    return json_response({"samples": samples, "operations": operations})


async def _cancel_request(services: Services, me: str, request_id: str) -> tuple[int, int]:
    found = await services.db.aread(results.find, me, request_id)
    if found is None and not was_made_for(me, request_id):
        raise NotFound(f"There is no request {request_id[:100]!r}.", code="unknown-request")
    if found is not None and found.kind == "sample":
        was_open = await asyncio.to_thread(
            services.scheduler.sample_cancelling.cancel, me, request_id
        )
        return int(was_open), 0
    cancelling = services.scheduler.operation_cancelling
    return 0, await asyncio.to_thread(cancelling.cancel_request, me, request_id)


ROUTES = [Route("/cancel", cancel, methods=["POST"])]
