"""Futures: long polls for results, one at a time or by sampling session, and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.errors import ServerError
from tinkex.server.errors import NotFound, Unprocessable, json_response
from tinkex.server.gate.admission import ReleasedSlot
from tinkex.server.result_waiters import wait_for
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.queue_state import State, queue_state, session_queue_state
from tinkex.server.submit.request_lookup import result_dropped, unknown_request
from tinkex.server.submit.sign_of_life import note_sign_of_life
from tinkex.store import results, samplers, samples
from tinkex.store.clock import steady_now
from tinkex.store.request_ids import was_made_for
from tinkex.store.results import Found, Result
from tinkex.types.requests import (
    CancelFutureRequest,
    FutureRetrieveRequest,
    FuturesRetrieveRequest,
)
from tinkex.types.session import (
    CompleteMetadataResponse,
    FutureCompletion,
    FutureFailed,
    FutureFinished,
    FuturesRetrieveResponse,
    TryAgainResponse,
)
from tinkex.wire import legacy_json, protobuf

PROTOBUF = "application/x-protobuf"
_COMPLETIONS_AT_ONCE = 1000
_LOOK_EVERY_S = 1.0


async def retrieve_future(request: Request) -> Response:
    """The result, as soon as it is there; 408 if it is not within the time of one poll."""
    services = services_of(request)
    payload = await read_json(request, FutureRetrieveRequest, services.config.limits)
    try:
        found = await _await_result(services, owner(request), payload.request_id)
    except ServerError:
        # The client polls again at once, whatever the error: hold it, or it comes back spinning.
        async with ReleasedSlot():
            await asyncio.sleep(services.config.error_hold_s)
        raise
    if found is None and not was_made_for(owner(request), payload.request_id):
        raise unknown_request(payload.request_id)
    if found is None or (found.result is None and found.is_finished):
        raise result_dropped(services.config, payload.request_id)
    if found.result is None:
        state, reason = queue_state(services, owner(request), found.kind, payload.request_id)
        again = TryAgainResponse(
            request_id=payload.request_id, queue_state=state, queue_state_reason=reason
        )
        return json_response(again, status=408)
    return await _answer(request, services, payload, found.kind, found.result)


async def retrieve_futures(request: Request) -> Response:
    """What one client of a sampling session got done since its cursor."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, FuturesRetrieveRequest, services.config.limits)
    target = payload.target
    if target.cloned_sampler_id > samples.MAX_CLONE:
        raise Unprocessable(
            f"cloned_sampler_id={target.cloned_sampler_id} must be at most {samples.MAX_CLONE}."
        )
    if await services.db.aread(samplers.get, me, target.sampling_session_id) is None:
        raise NotFound("There is no such sampling session.", code="unknown-sampling-session")
    services.last_seen[target.sampling_session_id] = steady_now()
    deadline = asyncio.get_running_loop().time() + services.config.poll_hold_s

    def state() -> State:
        return session_queue_state(services, me, target.sampling_session_id)

    def is_current() -> bool:
        return payload.known_queue_state is None or state()[0] == payload.known_queue_state

    while True:
        with services.waiters.watch(target.sampling_session_id) as future:
            done = await services.db.aread(
                samples.completions,
                me,
                target.sampling_session_id,
                target.cloned_sampler_id,
                payload.prev_cursor,
                _COMPLETIONS_AT_ONCE,
            )
            left_s = deadline - asyncio.get_running_loop().time()
            if done or left_s <= 0 or services.is_draining or not is_current():
                break
            async with ReleasedSlot():
                await _wait_while(is_current, future, left_s)
    answer = FuturesRetrieveResponse(
        completions=[_completion(each) for each in done],
        cursor=done[-1].number if done else payload.prev_cursor,
    )
    if payload.known_queue_state is not None:
        now, reason = state()
        answer = msgspec.structs.replace(answer, queue_state=now, queue_state_reason=reason)
    return json_response(answer)


async def _wait_while(
    goes_on: Callable[[], bool], future: asyncio.Future[Result | None], timeout_s: float
) -> None:
    """Returns when the future is set, the time is over, or the condition no longer holds."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while goes_on() and not future.done():
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        await asyncio.wait([future], timeout=min(left_s, _LOOK_EVERY_S))


async def cancel_future(request: Request) -> Response:
    """Stops a sampling request; other requests run to their end."""
    services = services_of(request)
    payload = await read_json(request, CancelFutureRequest, services.config.limits)
    me = owner(request)
    is_kept = await services.db.aread(results.find, me, payload.request_id) is not None
    if not is_kept and not was_made_for(me, payload.request_id):
        raise unknown_request(payload.request_id)
    await asyncio.to_thread(services.scheduler.sample_cancelling.cancel, me, payload.request_id)
    return json_response({})


async def _await_result(services: Services, me: str, request_id: str) -> Found | None:
    """What is known of the request, after waiting for its result up to one poll's time."""
    with services.waiters.watch(request_id) as future:
        found = services.waiters.find(me, request_id)
        if found is None:
            found = await services.db.aread(results.find, me, request_id)
        if found is None or found.is_finished:
            return found
        if found.kind == "sample":
            note_sign_of_life(services, me, request_id)
        async with ReleasedSlot():
            result = await wait_for(future, services.config.poll_hold_s)
        return msgspec.structs.replace(found, result=result)


async def _answer(
    request: Request, services: Services, payload: FutureRetrieveRequest, kind: str, result: Result
) -> Response:
    if payload.allow_metadata_only and len(result.body) > services.config.metadata_only_bytes:
        return json_response(CompleteMetadataResponse(response_payload_size=len(result.body)))
    if result.encoding != "proto":
        return Response(result.body, media_type="application/json")
    if PROTOBUF in request.headers.get("accept", ""):
        return Response(result.body, media_type=PROTOBUF)
    body = await asyncio.to_thread(_as_json, kind, result.body)
    return Response(body, media_type="application/json")


def _as_json(kind: str, body: bytes) -> bytes:
    """The form that clients before 0.25 read."""
    if kind == "sample":
        return legacy_json.encode_sample_response(protobuf.decode_sample_response(body))
    return legacy_json.encode_forward_backward_output(protobuf.decode_forward_backward_output(body))


def _completion(done: samples.Completion) -> FutureCompletion:
    if done.is_failed:
        return FutureFailed(request_id=done.request_id)
    return FutureFinished(
        request_id=done.request_id, response_payload_uncompressed_size=done.size_bytes
    )


ROUTES = [
    Route("/retrieve_future", retrieve_future, methods=["POST"]),
    Route("/retrieve_futures", retrieve_futures, methods=["POST"]),
    Route("/cancel_future", cancel_future, methods=["POST"]),
]
