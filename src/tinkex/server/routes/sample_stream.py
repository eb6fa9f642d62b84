"""Streamed samples: tokens as server-sent events while they are made. Beyond the protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tinkex.errors import TinkexError
from tinkex.server.errors import NotReady
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.queue_state import queue_state
from tinkex.server.submit.sample_following import find_sample, follow_steps
from tinkex.store.samples import Sample
from tinkex.types.sample_stream import (
    SampleDelta,
    SampleStreamEnd,
    SampleStreamQueue,
    StreamSampleRequest,
)
from tinkex.types.sampling import SampleResponse
from tinkex.wire import json

_QUIET_S = 2.0
_COMMENT = b": tokens follow\n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def stream_sample(request: Request) -> Response:
    """The tokens of a sampling request as they are made, as server-sent events."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, StreamSampleRequest, services.config.limits)
    sample = await find_sample(services, me, payload.request_id, payload.offsets)
    steps = follow_steps(
        services,
        sample,
        offsets=payload.offsets,
        quiet_s=_QUIET_S,
        cancel_when_left=payload.cancel_when_closed,
    )
    return EventStream(_events(services, sample, steps))


class EventStream(StreamingResponse):
    """An answer of server-sent events. The generator is closed when the client leaves."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _events(
    services: Services,
    sample: Sample,
    steps: AsyncGenerator[list[SampleDelta] | SampleResponse | None, None],
) -> AsyncGenerator[bytes, None]:
    """The events of a stream. Without an `end` the client connects again: the server stopped."""
    yield _COMMENT  # the head of the answer leaves with its first bytes
    end = SampleStreamEnd(request_id=sample.request_id)
    async with aclosing(steps):
        try:
            async for step in steps:
                if isinstance(step, list):
                    yield b"".join([_event(b"tokens", delta) for delta in step])
                elif step is None:
                    yield _event(b"queue", _queue(services, sample))
        except NotReady:
            return
        except TinkexError as error:
            end = SampleStreamEnd(request_id=sample.request_id, error=error.message)
    yield _event(b"end", end)


def _queue(services: Services, sample: Sample) -> SampleStreamQueue:
    state, reason = queue_state(services, sample.owner, "sample", sample.request_id)
    return SampleStreamQueue(queue_state=state, queue_state_reason=reason)


def _event(name: bytes, value: object) -> bytes:
    return b"event: " + name + b"\ndata: " + json.encode(value) + b"\n\n"


ROUTES = [Route("/stream_sample", stream_sample, methods=["POST"])]
