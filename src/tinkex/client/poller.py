"""Waiting for the result of an accepted request.

Executes the decisions of `polling`: polls, waits and polls again, and fails only when the server
has been unreachable for an hour. If one poll serves many promises (`Announcer`), it waits for that
one and then fetches the result once.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tinkex import telemetry
from tinkex.client import polling
from tinkex.client.budget import ByteBudget
from tinkex.client.queue_watch import QueueObserver, QueueWatch
from tinkex.client.request_events import Attempts, Observation, is_observed, observed
from tinkex.client.retry import MAX_EMPTY_400, RetryPolicy, backoff_s
from tinkex.client.transport import JSON, PROTOBUF, Answer, Call, Transport
from tinkex.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    RequestFailedError,
    TinkexError,
)
from tinkex.telemetry import events

__all__ = ["Announcer", "Poller", "Promise"]

PATIENCE_S = 3600.0
BILLING_PAUSE_S = 5.0
_PATH = "/retrieve_future"


class Announcer(Protocol):
    """Says which promises are kept, so that not each of them has to be polled for."""

    async def ready(self, request_id: str, observer: QueueObserver | None) -> int:
        """Returns once the result can be fetched: its size in bytes, 0 if unknown."""
        ...

    def note_fetched(self, request_id: str) -> None:
        """Notes that the server may forget the result."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request, and how its result is to be fetched."""

    request_id: str
    request_type: str
    is_protobuf: bool = False
    submit_roundtrip_s: float = 0.0
    about: dict[str, Any] = {}
    tells_queue_state: bool = True


class Poller:
    """One wait for one result."""

    def __init__(
        self,
        transport: Transport,
        promise: Promise,
        *,
        response_budget: ByteBudget,
        observer: QueueObserver | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        self._transport = transport
        self._clock = transport.runtime.clock
        self._promise = promise
        self._budget = response_budget
        self._observer = observer
        self._announcer = announcer
        self._policy = RetryPolicy(
            budget_s=PATIENCE_S,
            base_s=transport.config.retry_base_s,
            max_s=transport.config.retry_max_s,
        )
        self._attempts = Attempts(self._clock, _PATH)
        self._iteration = 0
        self._quick_answers = 0
        self._failed_polls = 0
        self._bad_requests = self._empty_400s = 0
        self._last_contact = self._clock.monotonic()
        about = {**promise.about, "request_id": promise.request_id}
        self._queue = QueueWatch(
            self._clock, promise.request_type, about if promise.tells_queue_state else None
        )

    async def result(self) -> Answer:
        """The answer that carries the result.

        Raises:
            RequestFailedError: the server could not do it.
            PromiseLostError: the server no longer knows the request.
            APIStatusError, APIConnectionError: the poll failed for good.
        """
        started = self._clock.monotonic()
        try:
            if not is_observed():
                return await self._until_done(Observation())
            async with observed(self._clock, self._transport.about(self._call())) as observation:
                return await self._until_done(observation)
        except TinkexError as error:
            self._attempts.fail(error)
            self._tell_failure(error, self._clock.monotonic() - started)
            raise

    async def _until_done(self, observation: Observation) -> Answer:
        self._attempts.begin()
        if self._announcer is not None:
            answer = await self._fetch_announced(self._announcer, observation)
        else:
            answer = await self._poll_until_done(observation)
        self._attempts.stop()
        return answer

    async def _fetch_announced(self, announcer: Announcer, observation: Observation) -> Answer:
        request_id = self._promise.request_id
        size = await announcer.ready(request_id, self._observer)
        self._last_contact = self._clock.monotonic()
        async with self._budget.hold(size):
            while True:
                step = await self._ask(allow_metadata_only=False, observation=observation)
                if isinstance(step, polling.Done):
                    announcer.note_fetched(request_id)
                    return step.answer

    async def _poll_until_done(self, observation: Observation) -> Answer:
        while True:
            step = await self._ask(allow_metadata_only=True, observation=observation)
            if isinstance(step, polling.Sized):
                async with self._budget.hold(step.size_bytes):
                    step = await self._ask(allow_metadata_only=False, observation=observation)
                    if isinstance(step, polling.Done):
                        return step.answer
            if isinstance(step, polling.Done):
                return step.answer

    async def _ask(self, *, allow_metadata_only: bool, observation: Observation) -> polling.Step:
        """One poll, and the wait its answer calls for. Returns; the caller decides to go on."""
        asked_at = self._clock.monotonic()
        try:
            answer = await self._transport.attempt(
                self._call(allow_metadata_only=allow_metadata_only)
            )
        except APIConnectionError as error:
            await self._wait_out(error, None)
            return polling.PollFailed(0)
        finally:
            self._iteration += 1
            observation.retry_count = self._iteration - 1
        observation.status = answer.status
        step = polling.next_step(answer, self._promise.request_id)
        match step:
            case None:
                raise self._transport.status_error(answer, self._call())
            case polling.Failed():
                raise step.error
            case polling.PollFailed():
                await self._wait_out(self._transport.status_error(answer, self._call()), answer)
                return step
            case polling.NotYet(queue=queue):
                await self._wait_turn(queue, self._clock.monotonic() - asked_at)
        self._last_contact = self._clock.monotonic()
        self._failed_polls = self._bad_requests = self._empty_400s = 0
        return step

    async def _wait_turn(self, queue: polling.Queue | None, held_s: float) -> None:
        self._queue.note(queue or polling.Queue(), self._observer)
        self._quick_answers = 0 if held_s >= 1.0 else self._quick_answers + 1
        pause = polling.pause_after_not_yet(held_s, self._quick_answers)
        if pause:
            await self._clock.sleep(pause)

    async def _wait_out(self, error: TinkexError, answer: Answer | None) -> None:
        """Sleeps before the next poll, or raises `error` once the retry policy is exhausted."""
        status = error.status if isinstance(error, APIStatusError) else None
        silent_for = self._clock.monotonic() - self._last_contact
        if self._is_refused(answer) or not self._policy.allows(0, silent_for):
            raise error
        if isinstance(error, APIConnectionError):
            self._transport.outage.note_retry(error)
        retry_after_s = (
            backoff_s(error.retry_after_s) if isinstance(error, APIStatusError) else None
        )
        delay = self._policy.delay_s(self._failed_polls, retry_after_s, self._clock.random())
        if status == 402:
            delay = max(delay, BILLING_PAUSE_S)
        self._failed_polls += 1
        self._attempts.retry(error, delay)
        await self._clock.sleep(delay)
        self._attempts.begin()

    def _is_refused(self, answer: Answer | None) -> bool:
        """Whether the poll is refused for good; an empty 400 is a proxy's, and passes."""
        if answer is not None and answer.status == 400:
            self._bad_requests += bool(answer.body)
            self._empty_400s += not answer.body
        return self._bad_requests > polling.MAX_BAD_REQUESTS or self._empty_400s > MAX_EMPTY_400

    def _call(self, *, allow_metadata_only: bool = False) -> Call:
        headers = {
            "X-Tinker-Request-Iteration": str(self._iteration),
            "X-Tinker-Request-Type": self._promise.request_type,
        }
        if self._iteration == 0:
            roundtrip = f"{self._promise.submit_roundtrip_s:.6f}"
            headers["X-Tinker-Create-Promise-Roundtrip-Time"] = roundtrip
        body = {
            "request_id": self._promise.request_id,
            "allow_metadata_only": allow_metadata_only,
        }
        return Call(
            method="POST",
            path=_PATH,
            pool="sample_poll" if self._promise.request_type == "Sample" else "poll",
            body=(msgspec.json.encode(body),),
            accept=PROTOBUF if self._promise.is_protobuf else JSON,
            headers=headers,
            timeout_s=self._transport.config.poll_timeout_s,
            about={**self._promise.about, "request_id": self._promise.request_id},
        )

    def _tell_failure(self, error: TinkexError, elapsed_s: float) -> None:
        telemetry.execute(
            _failure_event(error),
            {"elapsed_time": elapsed_s},
            {
                "request_id": self._promise.request_id,
                "request_type": self._promise.request_type,
                "iteration": self._iteration,
                "status": error.status if isinstance(error, APIStatusError) else None,
                "category": error.category if isinstance(error, RequestFailedError) else None,
            },
        )


def _failure_event(error: TinkexError) -> str:
    if isinstance(error, RequestFailedError):
        return events.FUTURE_REQUEST_FAILED
    if isinstance(error, APIStatusError):
        return events.FUTURE_API_ERROR
    if isinstance(error, APITimeoutError):
        return events.FUTURE_TIMEOUT
    if isinstance(error, APIConnectionError):
        return events.FUTURE_CONNECTION_ERROR
    return events.FUTURE_VALIDATION_ERROR
