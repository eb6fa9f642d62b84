"""One long poll for all samples of a sampling client, where the server offers it.

Without it every sample in flight holds a request of its own open. The shared poll only says which
results are ready, and from a Tinkex server whether the samples have to wait for others; results are
then fetched one by one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tinkex.client.connection import Connection
from tinkex.client.polling import Queue, queue_from
from tinkex.client.queue_watch import QueueObserver, QueueWatch
from tinkex.client.request_events import Attempts, Observation, is_observed, observed
from tinkex.client.retry import RetryPolicy, backoff_s, should_retry
from tinkex.client.transport import Answer, Call
from tinkex.errors import APIConnectionError, APIStatusError, TinkexError
from tinkex.types._extensions import FUTURES_QUEUE_STATE
from tinkex.types.requests import FuturesRetrieveRequest, SamplingSessionFuturesTarget
from tinkex.types.session import FutureFinished, FuturesRetrieveResponse
from tinkex.wire import json as wire_json

MAX_EARLY = 10_000
"""How many completions are kept that came before their waiters."""
PATIENCE_S = 3600.0
MIN_ROUND_S = 0.01
_PATH = "/retrieve_futures"


class FuturesPoll:
    """Notifies each waiting sample when its result can be fetched."""

    def __init__(self, connection: Connection, sampling_session_id: str, clone_id: int) -> None:
        self._connection = connection
        self._target = SamplingSessionFuturesTarget(
            sampling_session_id=sampling_session_id, cloned_sampler_id=clone_id
        )
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._early: dict[str, int] = {}
        self._fetched: list[str] = []
        self._cursor = 0
        self._task: asyncio.Task[Any] | None = None
        self._observer: QueueObserver | None = None
        self._about = {"sampling_session_id": sampling_session_id}
        self._queue = QueueWatch(connection.runtime.clock, "Sample", self._about)
        self._asks_queue_state = FUTURES_QUEUE_STATE in connection.flags.extensions

    async def ready(self, request_id: str, observer: QueueObserver | None = None) -> int:
        """Returns once the result can be fetched: its size in bytes, 0 if unknown.

        The observer of the last sample that began to wait gets the queue's state.
        """
        if request_id in self._early:
            return self._early.pop(request_id)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = turn
        self._observer = observer
        if self._task is None or self._task.done():
            self._task = self._connection.runtime.spawn(self._run())
        try:
            return await turn
        finally:
            self._waiting.pop(request_id, None)

    def note_fetched(self, request_id: str) -> None:
        """Acknowledges the result with the next poll, so that the server may forget it."""
        self._fetched.append(request_id)

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._take(await self._poll())
        except TinkexError as error:
            for turn in self._waiting.values():
                if not turn.done():
                    turn.set_exception(error)
        finally:
            self._observer = None

    async def _poll(self) -> FuturesRetrieveResponse:
        fetched, self._fetched = self._fetched, []
        call = self._call(fetched)
        try:
            if not is_observed():
                return await self._until_answered(call, Observation())
            transport = self._connection.transport
            async with observed(transport.runtime.clock, transport.about(call)) as observation:
                return await self._until_answered(call, observation)
        except TinkexError:
            self._fetched = fetched + self._fetched
            raise

    def _call(self, fetched: list[str]) -> Call:
        request = FuturesRetrieveRequest(
            target=self._target,
            prev_cursor=self._cursor,
            retrieved_request_ids=fetched,
            known_queue_state=self._queue.state if self._asks_queue_state else None,
        )
        return Call(
            method="POST",
            path=_PATH,
            pool="sample_poll",
            body=(wire_json.encode(request),),
            timeout_s=self._connection.config.poll_timeout_s,
            about=self._about,
        )

    async def _until_answered(
        self, call: Call, observation: Observation
    ) -> FuturesRetrieveResponse:
        clock, transport = self._connection.runtime.clock, self._connection.transport
        policy, attempts = RetryPolicy(budget_s=PATIENCE_S), Attempts(clock, _PATH)
        started, retries = clock.monotonic(), 0
        while True:
            asked_at = clock.monotonic()
            attempts.begin()
            error: TinkexError
            try:
                answer = await transport.attempt(call)
                observation.status = answer.status
                if answer.is_ok:
                    attempts.stop()
                    return await self._read(answer, clock.monotonic() - asked_at)
                error = transport.status_error(answer, call)
                may_retry = should_retry(answer.status, answer.headers, answer.body)
            except APIConnectionError as failure:
                error, may_retry = failure, True
            if not may_retry or not policy.allows(retries, clock.monotonic() - started):
                attempts.fail(error)
                raise error
            retry_after_s = (
                backoff_s(error.retry_after_s) if isinstance(error, APIStatusError) else None
            )
            delay_s = policy.delay_s(retries, retry_after_s, clock.random())
            attempts.retry(error, delay_s)
            await clock.sleep(delay_s)
            retries += 1
            observation.retry_count = retries

    async def _read(self, answer: Answer, held_s: float) -> FuturesRetrieveResponse:
        """The answer; after an immediate empty one the next poll is delayed."""
        response = wire_json.decode(answer.body, FuturesRetrieveResponse)
        if not response.completions and held_s < 1.0:
            await self._connection.runtime.clock.sleep(MIN_ROUND_S if held_s > 0.1 else 0.25)
        return response

    def _take(self, response: FuturesRetrieveResponse) -> None:
        self._cursor = response.cursor
        for completion in response.completions:
            size = 0
            if isinstance(completion, FutureFinished):
                size = completion.response_payload_uncompressed_size or 0
            # Taken out here, not by the waiter: it wakes only after the next poll has begun.
            turn = self._waiting.pop(completion.request_id, None)
            if turn is not None and not turn.done():
                turn.set_result(size)
            elif turn is None and len(self._early) < MAX_EARLY:
                self._early[completion.request_id] = size
        is_told = self._waiting and response.queue_state is not None
        queue = queue_from(response.queue_state, response.queue_state_reason)
        self._queue.note(queue if is_told else Queue(), self._observer)
