"""Server-sent events as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["COMMENT", "DONE", "OpenAIStream", "event"]

COMMENT = b": waiting\n\n"
"""An SSE comment that keeps the connection open."""

DONE = b"data: [DONE]\n\n"
"""The last event of a complete stream."""

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_ENCODER = msgspec.json.Encoder()


class OpenAIStream(StreamingResponse):
    """A response of server-sent events; closes `held` at its end or when the client disconnects."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], held: AsyncExitStack, request_id: str
    ) -> None:
        headers = {**_HEADERS, "x-request-id": request_id}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held, aclosing(self._events):
            await super().__call__(scope, receive, send)


def event(value: object) -> bytes:
    """One event."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"
