"""Following one sample: its tokens as an engine makes them, then its result.

Any sample can be followed, by any number of followers, from its start or from where a follower
stopped. One that was not submitted with `stream` gives all its tokens at its end. Tokens come from
the scheduler's `SampleStreams`, and once the sample is over from its result in the store, so a slow
follower holds up neither the engine nor memory. What was yielded is compared with the result: a
sample that had to run again and came out otherwise is an error, never a changed token.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from tinkex.errors import ErrorCategory, RequestFailedError, ServerError
from tinkex.scheduler.running.sample_streams import tokens_key
from tinkex.server.errors import NotReady, Unprocessable
from tinkex.server.gate.admission import ReleasedSlot
from tinkex.server.result_waiters import wait_for
from tinkex.server.services import Services
from tinkex.server.submit.request_lookup import result_dropped, unknown_request
from tinkex.server.submit.sign_of_life import note_sign_of_life
from tinkex.store import StoreError, results, samples
from tinkex.store.request_ids import was_made_for
from tinkex.store.results import Result
from tinkex.store.samples import Sample
from tinkex.types.sample_stream import SampleDelta
from tinkex.types.sampling import SampledSequence, SampleResponse
from tinkex.wire import protobuf

__all__ = ["SampleChanged", "find_sample", "follow_sample", "follow_steps"]

_LOOK_EVERY_S = 10.0
_INLINE_BYTES = 32 * 1024

_logger = logging.getLogger(__name__)


class SampleChanged(ServerError):
    """500: the sample had to run again and got other tokens than those that were streamed."""

    code = "sample-changed"
    default_hint = "Fetch its result, which is whole and does not change, or sample anew."


async def follow_sample(
    services: Services,
    owner: str,
    request_id: str,
    *,
    offsets: Sequence[int] = (),
    quiet_s: float | None = None,
    cancel_when_left: bool = False,
) -> AsyncGenerator[SampleDelta | SampleResponse | None, None]:
    """The tokens of the owner's sample as they are made, then its whole result as the last value.

    `offsets`: how many tokens of each sequence the caller has already. None is yielded whenever
    nothing came for `quiet_s`, so that the caller can keep its connection alive. With
    `cancel_when_left` the sample is cancelled if the caller closes this generator (`aclosing`), or
    is itself cancelled, before the end. A wait holds no admission slot.

    Raises:
        NotFound: there is no such request, or another owner has it.
        Gone: its result is no longer kept.
        Unprocessable: it is no sample, or `offsets` do not fit it.
        RequestFailedError: the sample failed, or was cancelled.
        SampleChanged: it ran again, and its result is not what was streamed.
        NotReady: this server is stopping; the sample goes on at its next start.
    """
    sample = await find_sample(services, owner, request_id, offsets)
    steps = follow_steps(
        services, sample, offsets=offsets, quiet_s=quiet_s, cancel_when_left=cancel_when_left
    )
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, list):
                for delta in step:
                    yield delta
            else:
                yield step


async def find_sample(
    services: Services, owner: str, request_id: str, offsets: Sequence[int] = ()
) -> Sample:
    """The owner's sample that can be followed from there; see `follow_sample` for the errors."""
    sample = await services.db.aread(samples.get, owner, request_id)
    if sample is None:
        other = await services.db.aread(results.find, owner, request_id)
        if other is None and not was_made_for(owner, request_id):
            raise unknown_request(request_id)
        if other is None:
            raise result_dropped(services.config, request_id)
        raise Unprocessable(f"{request_id} is no sampling request, so it has no tokens.")
    if offsets and len(offsets) != sample.num_samples:
        raise Unprocessable(
            f"offsets has {len(offsets)} numbers, but {request_id} has {sample.num_samples} "
            "sequences.",
            hint="Give one number for each sequence, or none at all.",
        )
    return sample


async def follow_steps(
    services: Services,
    sample: Sample,
    *,
    offsets: Sequence[int] = (),
    quiet_s: float | None = None,
    cancel_when_left: bool = False,
) -> AsyncGenerator[list[SampleDelta] | SampleResponse | None, None]:
    """What `follow_sample` yields, with all tokens that are there at a time together."""
    with services.waiters.watch(sample.request_id) as done:
        follower = _Follower(services, sample, done, offsets)
        try:
            await follower.look_up()
            while (result := follower.result()) is None:
                if deltas := follower.new_tokens():
                    yield deltas
                elif not await follower.wait(quiet_s or _LOOK_EVERY_S):
                    note_sign_of_life(services, sample.owner, sample.request_id)
                    if quiet_s is not None:
                        yield None
            response = await _response(sample, result)
            if rest := follower.rest_of(response):
                yield rest
            yield response
        except (GeneratorExit, asyncio.CancelledError):
            if cancel_when_left and not (follower.is_over or services.is_draining):
                asyncio.get_running_loop().run_in_executor(None, _cancel, services, sample)
            raise


class _Follower:
    """How far one follower is in the sequences of a sample."""

    def __init__(
        self,
        services: Services,
        sample: Sample,
        done: asyncio.Future[Result | None],
        offsets: Sequence[int],
    ) -> None:
        self._services = services
        self._sample = sample
        self._done = done
        self._found: Result | None = None
        self._began = list(offsets) or [0] * sample.num_samples
        self._offsets = list(self._began)
        self._sums = [0] * sample.num_samples  # checksums of the tokens that were yielded

    async def look_up(self) -> None:
        """Finds the result if it was there before `done` was watched.

        Raises:
            Gone: it is no longer kept.
        """
        owner, request_id = self._sample.owner, self._sample.request_id
        found = self._services.waiters.find(owner, request_id)
        if found is None:
            found = await self._services.db.aread(results.find, owner, request_id)
        if found is None or (found.result is None and found.is_finished):
            raise result_dropped(self._services.config, request_id)
        self._found = found.result
        note_sign_of_life(self._services, owner, request_id)

    @property
    def is_over(self) -> bool:
        """Whether the sample has ended, as far as is known here."""
        return self._found is not None or (self._done.done() and self._done.result() is not None)

    def result(self) -> Result | None:
        """The sample's result, if it is there.

        Raises:
            NotReady: this server is stopping.
        """
        if self._found is None and self._done.done():
            self._found = self._done.result()
            if self._found is None:
                raise NotReady("The server is stopping.")
        return self._found

    def new_tokens(self) -> list[SampleDelta]:
        """What was made since the last call."""
        streams = self._services.scheduler.streams
        deltas = streams.read(self._sample.request_id, self._offsets)
        for delta in deltas:
            self._offsets[delta.index] = delta.end
            content = array("i", delta.tokens).tobytes()
            self._sums[delta.index] = zlib.crc32(content, self._sums[delta.index])
        return deltas

    async def wait(self, timeout_s: float) -> bool:
        """Whether there was news of the sample within the time.

        No await lies between `new_tokens` and the watch, so no announcement is missed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with self._services.waiters.watch(tokens_key(self._sample.request_id)) as news:

            def wake(_: object) -> None:
                if not news.done():
                    news.set_result(None)

            self._done.add_done_callback(wake)
            try:
                async with ReleasedSlot():
                    await wait_for(news, timeout_s)
            finally:
                self._done.remove_done_callback(wake)
        return loop.time() < deadline

    def rest_of(self, response: SampleResponse) -> list[SampleDelta]:
        """The tokens of the result that were not yielded yet.

        Raises:
            SampleChanged: those that were yielded are not its tokens.
        """
        rest = []
        for index, sequence in enumerate(response.sequences):
            start, offset = self._began[index], self._offsets[index]
            yielded = sequence.tokens_raw[4 * start : 4 * offset]
            if 4 * offset > len(sequence.tokens_raw) or zlib.crc32(yielded) != self._sums[index]:
                raise SampleChanged(
                    f"{self._sample.request_id} had to run again, and the tokens of its sequence "
                    f"{index} are not those that were streamed."
                )
            if 4 * offset < len(sequence.tokens_raw):
                rest.append(_from(sequence, index, offset))
        return rest


class _Failure(msgspec.Struct):
    """The fields of an error's result."""

    error: str
    category: ErrorCategory


def _from(sequence: SampledSequence, index: int, offset: int) -> SampleDelta:
    """The sequence from this token on."""
    topk = sequence.topk_logprobs
    return SampleDelta(
        index=index,
        offset=offset,
        tokens=sequence.tokens[offset:],
        logprobs=(sequence.logprobs or [])[offset:],
        topk_logprobs=None if topk is None else topk[offset:],
        stop_reason=sequence.stop_reason,
    )


async def _response(sample: Sample, result: Result) -> SampleResponse:
    """The result as a value.

    Raises:
        RequestFailedError: it is an error.
    """
    if result.encoding == "error":
        failure = msgspec.json.decode(result.body, type=_Failure)
        raise RequestFailedError(failure.error, sample.request_id, failure.category)
    ids = [f"{sample.request_id}-{index}" for index in range(sample.num_samples)]
    if len(result.body) <= _INLINE_BYTES:
        return protobuf.decode_sample_response(result.body, ids)
    return await asyncio.to_thread(protobuf.decode_sample_response, result.body, ids)


def _cancel(services: Services, sample: Sample) -> None:
    try:
        services.scheduler.sample_cancelling.cancel(sample.owner, sample.request_id)
    except StoreError as error:
        _logger.error("A sample goes on although its client left: %s", error)
