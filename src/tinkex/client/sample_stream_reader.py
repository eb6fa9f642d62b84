"""Reads a sample's tokens from the server while they are made, through cut connections."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from contextlib import aclosing

from tinkex.client.connection import Connection
from tinkex.client.event_stream import read_events
from tinkex.client.poller import PATIENCE_S
from tinkex.client.polling import Queue, queue_from
from tinkex.client.retry import RetryPolicy, backoff_s, is_retryable_status
from tinkex.client.transport import Call
from tinkex.errors import APIConnectionError, APIStatusError, TinkexError
from tinkex.types.sample_stream import (
    SampleDelta,
    SampleStreamEnd,
    SampleStreamQueue,
    StreamSampleRequest,
)
from tinkex.types.sampling import SampleResponse
from tinkex.wire import json as wire_json

__all__ = ["SampleStreamReader"]

_PATH = "/stream_sample"


class SampleStreamReader:
    """One sample's tokens: each is given to `put` once, in the order of its sequence."""

    def __init__(
        self,
        connection: Connection,
        request_id: str,
        num_samples: int,
        put: Callable[[SampleDelta], None],
        on_queue_state: Callable[[str, Queue], None],
    ) -> None:
        self._connection = connection
        self._request_id = request_id
        self._put = put
        self._on_queue_state = on_queue_state
        self._offsets = [0] * num_samples
        self._sums = [0] * num_samples
        self._policy = RetryPolicy(
            budget_s=PATIENCE_S,
            base_s=connection.config.retry_base_s,
            max_s=connection.config.retry_max_s,
        )

    async def read(self) -> SampleStreamEnd:
        """What the server says at the end. A cut stream is resumed behind its last token.

        Raises:
            APIStatusError, APIConnectionError: the server refuses, or is out of reach for an hour.
        """
        try:
            return await self._read_through_cuts()
        finally:
            self._on_queue_state(self._request_id, Queue())

    async def _read_through_cuts(self) -> SampleStreamEnd:
        clock = self._connection.runtime.clock
        last_contact, failures = clock.monotonic(), 0
        while True:
            before = list(self._offsets)
            error: TinkexError | None = None
            try:
                if (end := await self._read_once()) is not None:
                    return end
            except APIConnectionError as cut:
                error = cut
            except APIStatusError as refused:
                if not is_retryable_status(refused.status):
                    raise
                error = refused
            if self._offsets != before:
                last_contact, failures = clock.monotonic(), 0
            if error is not None and not self._policy.allows(0, clock.monotonic() - last_contact):
                raise error
            retry_after_s = (
                backoff_s(error.retry_after_s) if isinstance(error, APIStatusError) else None
            )
            await clock.sleep(self._policy.delay_s(failures, retry_after_s, clock.random()))
            failures += 1

    def agrees_with(self, response: SampleResponse) -> bool:
        """Whether the tokens that were put are those of the result."""
        found = [(len(s.tokens_raw) // 4, zlib.crc32(s.tokens_raw)) for s in response.sequences]
        return found == list(zip(self._offsets, self._sums, strict=True))

    async def _read_once(self) -> SampleStreamEnd | None:
        """What one answer ends with; None if it was cut."""
        request = StreamSampleRequest(request_id=self._request_id, offsets=self._offsets)
        call = Call(
            method="POST",
            path=_PATH,
            pool="sample_poll",
            body=(wire_json.encode(request),),
            accept="text/event-stream",
            about={"request_id": self._request_id},
        )
        async with aclosing(read_events(self._connection.transport, call)) as events:
            async for name, data in events:
                if name == "tokens":
                    self._take(wire_json.decode(data, SampleDelta))
                elif name == "queue":
                    update = wire_json.decode(data, SampleStreamQueue)
                    queue = queue_from(update.queue_state, update.queue_state_reason)
                    self._on_queue_state(self._request_id, queue)
                elif name == "end":
                    return wire_json.decode(data, SampleStreamEnd)
        return None

    def _take(self, delta: SampleDelta) -> None:
        self._offsets[delta.index] = delta.end
        content = array("i", delta.tokens).tobytes()
        self._sums[delta.index] = zlib.crc32(content, self._sums[delta.index])
        self._on_queue_state(self._request_id, Queue())
        self._put(delta)
