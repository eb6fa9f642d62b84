"""Samples of an HTTP request that waits for their results: submitted like any other sample,
awaited on the client's connection, and cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from tinkex.errors import ClientError, RequestFailedError, ServerError, TinkexError
from tinkex.server.errors import NotReady
from tinkex.server.gate.admission import ReleasedSlot
from tinkex.server.openai.sampling_sessions import EndpointSampler, EndpointSamplers
from tinkex.server.services import Services
from tinkex.server.submit.sample_following import follow_steps
from tinkex.server.submit.sample_submission import SampleSubmission
from tinkex.server.submit.submission import accept
from tinkex.store import StoreError, results
from tinkex.store.clock import steady_now
from tinkex.store.results import Result
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest
from tinkex.types.sample_stream import SampleDelta
from tinkex.types.sampling import SampleResponse
from tinkex.wire import json, protobuf

__all__ = ["ClientLeft", "HeldSamples", "SampleFailed", "Step", "Unsampled"]

Step = list[SampleDelta] | SampleResponse | None
T = TypeVar("T")

_BEAT_S = 10.0
_QUIET_S = 5.0  # seconds of silence; then a comment is sent, so that no proxy closes the stream


class ClientLeft(Exception):
    """The client closed its connection, so no response can be sent."""


class SampleFailed(ClientError):
    """400: the engine refused the request; the message names the part to change."""

    code = "sample-refused"
    status = 400


class Unsampled(ServerError):
    """500: the engine failed on a valid request."""

    code = "sample-failed"
    status = 500
    default_hint = "Send the request again."


class HeldSamples:
    """The samples of one HTTP request; leaving the block cancels those that are not finished."""

    def __init__(
        self,
        services: Services,
        samplers: EndpointSamplers,
        sampler: EndpointSampler,
        key_id: int,  # the API key that their usage is counted for
    ) -> None:
        self._services = services
        self._samplers = samplers
        self._sampler = sampler
        self._key_id = key_id
        self._open: dict[str, Sample] = {}

    async def __aenter__(self) -> HeldSamples:
        return self

    async def __aexit__(self, *_: object) -> None:
        for request_id, sample in list(self._open.items()):
            with contextlib.suppress(StoreError):  # the server cancels it as abandoned
                await asyncio.to_thread(
                    self._services.scheduler.sample_cancelling.cancel, sample.owner, request_id
                )

    async def submit(self, request: SampleRequest) -> Sample:
        """The stored row of a request, which is logged and scheduled.

        Raises:
            Busy: too many samples are queued.
            LimitExceeded: the request is above one of the server's limits.
        """
        self._services.check_disk()
        SampleSubmission.check_room(self._services, self._sampler.record.owner)
        numbered = msgspec.structs.replace(
            request,
            sampling_session_id=self._sampler.record.sampling_session_id,
            seq_id=next(self._sampler.seq_ids),
        )
        submission = await SampleSubmission.of(
            self._services, self._sampler.record, numbered, json.encode(numbered)
        )
        sample = await accept(self._services, submission, self._key_id)
        self._open[sample.request_id] = sample
        return sample

    async def result(self, sample: Sample, request: Request) -> SampleResponse:
        """The samples of a request, once they are done.

        Raises:
            ClientLeft: the client closed its connection first.
            SampleFailed: the engine refused the request.
            NotReady: the server stops.
            Unsampled: the engine failed.
        """
        found = await self._wait(sample, request)
        del self._open[sample.request_id]
        if found.encoding == "error":
            raise failure_of(found)
        return protobuf.decode_sample_response(found.body)

    async def follow(self, sample: Sample) -> AsyncGenerator[Step, None]:
        """New tokens as they are sampled, None on a heartbeat without any; last the whole result.

        Raises:
            SampleFailed: the engine refused the request.
            NotReady: the server stops.
            Unsampled: the engine failed.
        """
        steps = follow_steps(self._services, sample, quiet_s=_QUIET_S)
        async with aclosing(steps):
            try:
                async for step in steps:
                    if isinstance(step, SampleResponse):
                        del self._open[sample.request_id]
                    yield step
            except RequestFailedError as error:
                del self._open[sample.request_id]
                raise await self._failure(sample) from error

    async def first_step(self, steps: AsyncGenerator[T, None], request: Request) -> T:
        """The first step of a stream, so that a request that fails at once gets an HTTP error.

        Raises:
            ClientLeft: the client closed its connection first.
        """
        step = asyncio.ensure_future(anext(steps))
        left = asyncio.ensure_future(_disconnect(request))
        try:
            either: list[asyncio.Future[Any]] = [step, left]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                raise ClientLeft
            return await step
        finally:
            for task in (step, left):
                task.cancel()

    async def _failure(self, sample: Sample) -> TinkexError:
        stored = await self._services.db.aread(results.find, sample.owner, sample.request_id)
        assert stored is not None, "its failure was read from there"
        assert stored.result is not None, "as above"
        return failure_of(stored.result)

    async def _wait(self, sample: Sample, request: Request) -> Result:
        waiters = self._services.waiters
        with waiters.watch(sample.request_id) as future:
            known = waiters.find(sample.owner, sample.request_id)
            if known is not None and known.result is not None:
                return known.result
            left = asyncio.ensure_future(_disconnect(request))
            try:
                async with ReleasedSlot():
                    while not future.done():
                        either: list[asyncio.Future[Any]] = [future, left]
                        await asyncio.wait(
                            either, timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED
                        )
                        self._beat()
                        if left.done() and not future.done():
                            raise ClientLeft
            finally:
                left.cancel()
            found = future.result()
        if found is None:
            found = await self._stored(sample)
        return found

    async def _stored(self, sample: Sample) -> Result:
        """The result of a request whose wait was ended because the server is stopping."""
        stored = await self._services.db.aread(results.find, sample.owner, sample.request_id)
        if stored is None or stored.result is None:
            raise NotReady("The server is stopping.")
        return stored.result

    def _beat(self) -> None:
        record = self._sampler.record
        self._samplers.beat(record.session_id)
        self._services.last_seen[record.sampling_session_id] = steady_now()


def failure_of(result: Result) -> TinkexError:
    """The error that a request ended with."""
    failure = msgspec.json.decode(result.body)
    code = failure.get("code") or None
    if failure.get("category") == "user":
        return SampleFailed(failure["error"], code=code)
    return Unsampled(failure["error"], code=code)


async def _disconnect(request: Request) -> None:
    """Returns when the client has closed its connection. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
