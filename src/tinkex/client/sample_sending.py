"""One sampling request on its way: sent within the client's bounds, cancelled, fetched, retried."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from tinkex.client.connection import Connection
from tinkex.client.futures_poll import FuturesPoll
from tinkex.client.poller import Promise
from tinkex.client.polling import Queue
from tinkex.client.queue_watch import PausedStreams, QueueWatch
from tinkex.client.request_events import Attempts
from tinkex.client.retry import NO_RETRIES, RetryPolicy, is_retryable_status
from tinkex.client.sample_stream import DeltaQueue, whole_deltas
from tinkex.client.sample_stream_reader import SampleStreamReader
from tinkex.client.session import Session
from tinkex.client.transport import Answer
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    PromiseLostError,
    RateLimitError,
    RequestFailedError,
    TinkexError,
)
from tinkex.types.requests import CLONE_STRIDE, SampleRequest
from tinkex.types.sampling import SampleResponse
from tinkex.types.session import UntypedPromise
from tinkex.wire import json as wire_json
from tinkex.wire import protobuf

__all__ = ["SampleSender"]

_BACKPRESSURE = {"X-Tinker-Sampling-Backpressure": "1"}

T = TypeVar("T")
OnQueueState = Callable[[Queue], None]


class SampleSender:
    """Sends the samples of one client of a sampler, in this process."""

    def __init__(
        self,
        session: Session,
        sampling_session_id: str,
        clone_id: int,
        retry: RetryPolicy | None,
    ) -> None:
        self._session = session
        self._sampling_session_id = sampling_session_id
        self._retry = retry
        self._connection: Connection = session.connection
        self._runtime = session.connection.runtime
        self.seq_ids = itertools.count(clone_id * CLONE_STRIDE)
        flags, config = self._connection.flags, self._connection.config
        most = min(flags.sample_max_concurrent_requests, config.max_samples_in_flight)
        if retry is not None and retry.max_in_flight is not None:
            most = min(most, retry.max_in_flight)
        self._in_flight = asyncio.Semaphore(most)
        about = {"sampling_session_id": sampling_session_id}
        self._paused_streams = PausedStreams(QueueWatch(self._runtime.clock, "Sample", about))
        self._shared_poll = (
            FuturesPoll(self._connection, sampling_session_id, clone_id)
            if flags.sample_use_retrieve_futures
            else None
        )

    async def sample(
        self, request: SampleRequest, body: bytes, on_queue_state: OnQueueState
    ) -> SampleResponse:
        """One sample within the client's bound, repeated only as far as the policy says."""
        once = functools.partial(self._sample_once, on_queue_state=on_queue_state)
        async with self._in_flight:
            return await self._with_retries(request, body, once)

    async def stream(
        self,
        request: SampleRequest,
        body: bytes,
        on_queue_state: OnQueueState,
        queue: DeltaQueue,
    ) -> SampleResponse:
        """One sample whose tokens go into the queue as they are made. Only its submission is
        repeated by the policy: a sample in the place of one that is lost would be another."""
        async with self._in_flight:
            promise, sequence_ids = await self._with_retries(request, body, self._send)
            reader = SampleStreamReader(
                self._connection,
                promise.request_id,
                request.num_samples,
                queue.put,
                functools.partial(self._paused_streams.note, observer=on_queue_state),
            )
            try:
                end = await reader.read()
                answer = await self._connection.fetch(promise, on_queue_state)
            except asyncio.CancelledError:
                self._runtime.spawn_last(self._connection.cancel(promise.request_id))
                raise
        response = _checked(answer, request, sequence_ids, promise.request_id)
        if not reader.agrees_with(response):
            why = end.error or "The tokens of the result are not those that were streamed."
            queue.note_error(RequestFailedError(why, promise.request_id, "server"))
        return response

    async def sample_at_once(
        self,
        request: SampleRequest,
        body: bytes,
        on_queue_state: OnQueueState,
        queue: DeltaQueue,
    ) -> SampleResponse:
        """One sample of a server that does not stream: its tokens come at its end."""
        response = await self.sample(request, body, on_queue_state)
        for delta in whole_deltas(response):
            queue.put(delta)
        return response

    async def _with_retries(
        self,
        request: SampleRequest,
        body: bytes,
        attempt: Callable[[SampleRequest, bytes], Awaitable[T]],
    ) -> T:
        policy = self._retry
        if policy is None:
            return await attempt(request, body)
        clock, attempts = self._runtime.clock, Attempts(self._runtime.clock, "sample")
        started, retries = clock.monotonic(), 0
        while True:
            attempts.begin()
            try:
                answer = await attempt(request, body)
                attempts.stop()
                return answer
            except TinkexError as error:
                retry_after_s = error.retry_after_s if isinstance(error, APIStatusError) else None
                elapsed_s = clock.monotonic() - started + (retry_after_s or 0.0)
                if not _is_worth_a_retry(error) or not policy.allows(retries, elapsed_s):
                    attempts.fail(error)
                    raise
                delay_s = policy.delay_s(retries, retry_after_s, clock.random())
                attempts.retry(error, delay_s)
                is_lost = isinstance(error, PromiseLostError)
            await clock.sleep(delay_s)
            retries += 1
            if is_lost:
                request = msgspec.structs.replace(request, seq_id=next(self.seq_ids))
                body = wire_json.encode(request)

    async def _sample_once(
        self, request: SampleRequest, body: bytes, on_queue_state: OnQueueState
    ) -> SampleResponse:
        promise, sequence_ids = await self._send(request, body)
        try:
            answer = await self._connection.fetch(promise, on_queue_state, self._shared_poll)
        except asyncio.CancelledError:
            self._runtime.spawn_last(self._connection.cancel(promise.request_id))
            raise
        return _checked(answer, request, sequence_ids, promise.request_id)

    async def _send(self, request: SampleRequest, body: bytes) -> tuple[Promise, list[str]]:
        limiter, clock = self._connection.limiter, self._runtime.clock
        async with self._connection.sample_budget.hold(len(body)):
            await limiter.wait()
            started = clock.monotonic()
            try:
                promise, accepted = await self._submit(request, body)
            except RateLimitError as error:
                limiter.hold(error.retry_after_s)
                raise
        limiter.note_success(started)
        return promise, accepted.sample_sequence_ids or []

    async def _submit(self, request: SampleRequest, body: bytes) -> tuple[Promise, UntypedPromise]:
        """Hands the request to the server. If the wait for its answer is cancelled, the server may
        have begun: if it supports cancelling, the answer is still read, for the request's id."""
        sending = self._runtime.spawn_last(
            self._connection.promise(
                "/asample",
                (body,),
                request_type="Sample",
                pool="sample",
                headers=_BACKPRESSURE,
                policy=NO_RETRIES,
                is_protobuf=True,
                about={
                    "session_id": self._session.session_id,
                    "sampling_session_id": self._sampling_session_id,
                    "seq_id": request.seq_id,
                },
            )
        )
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if self._connection.dynamic.sample_cancel_enabled:
                self._runtime.spawn_last(self._cancel_sent(sending))
            else:
                sending.cancel()
            raise

    async def _cancel_sent(self, sending: asyncio.Task[tuple[Promise, UntypedPromise]]) -> None:
        try:
            promise, _ = await sending
        except TinkexError:
            return  # it was refused, or nothing is known of it
        await self._connection.cancel(promise.request_id)


def _is_worth_a_retry(error: TinkexError) -> bool:
    if isinstance(error, APIStatusError):
        return is_retryable_status(error.status) or (error.status == 400 and not error.body)
    return isinstance(error, APIConnectionError | PromiseLostError)


def _checked(
    answer: Answer, request: SampleRequest, sequence_ids: list[str], request_id: str
) -> SampleResponse:
    """The response, if it has the requested form."""
    if not answer.is_protobuf:
        raise APIResponseValidationError(
            "The sample came as JSON; this client reads protobuf.", request_id=request_id
        )
    response = protobuf.decode_sample_response(answer.body, sequence_ids)
    if len(response.sequences) != request.num_samples:
        raise APIResponseValidationError(
            f"The server sent {len(response.sequences)} of {request.num_samples} samples.",
            request_id=request_id,
        )
    return response
