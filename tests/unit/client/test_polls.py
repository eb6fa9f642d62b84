"""Polls: what one answer means, how a wait goes on, and one poll for many samples."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.unit.client.steady import steady
from tinkex import Runtime
from tinkex.client import polling
from tinkex.client.futures_poll import FuturesPoll
from tinkex.client.polling import Done, Failed, NotYet, PollFailed, Queue, Sized, next_step
from tinkex.client.transport import Answer
from tinkex.errors import (
    APIResponseValidationError,
    NotFoundError,
    PromiseLostError,
    RequestFailedError,
)

MODEL = "tiny/model"


def answer(status: int = 200, body: Any = None, content_type: str = "application/json") -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status=status, headers={"content-type": content_type}, body=raw)


@pytest.mark.parametrize(
    ("given_answer", "meaning"),
    [
        (answer(200, b"\x0a", "application/x-protobuf"), Done),
        (answer(200, {"type": "try_again", "queue_state": "active"}), NotYet),
        (answer(200, {"status": "complete_metadata", "response_payload_size": 9}), Sized),
        (answer(200, {"error": None}), Failed),
        (answer(200, {"path": "x"}), Done),
        (answer(200, b"[1]"), Failed),
        (answer(200, b"no json"), Failed),
        (answer(200, b"\xff\xfe"), Failed),
        (answer(408, b""), NotYet),
        (answer(410, b""), Failed),
        (answer(400, b""), PollFailed),
        (answer(402, b""), PollFailed),
        (answer(409, b""), PollFailed),
        (answer(429, b""), PollFailed),
        (answer(500, b""), PollFailed),
        (answer(503, b"<html>"), PollFailed),
    ],
)
def test_what_an_answer_means(given_answer: Answer, meaning: type) -> None:
    assert isinstance(next_step(given_answer, "r-1"), meaning)


@pytest.mark.parametrize("status", [401, 403, 404, 422, 301])
def test_final_statuses_end_the_wait_as_they_are(status: int) -> None:
    assert next_step(answer(status, {}), "r-1") is None


def test_a_result_that_was_dropped_is_reported_in_the_servers_words() -> None:
    lost = next_step(answer(410, b'{"detail": "It is no longer kept.", "code": "x"}'), "r-1")
    assert isinstance(lost, Failed)
    assert isinstance(lost.error, PromiseLostError)
    assert "It is no longer kept." in lost.error.message


def test_failures_carry_their_request_and_category() -> None:
    lost = next_step(answer(410, b""), "r-1")
    assert isinstance(lost, Failed)
    assert isinstance(lost.error, PromiseLostError)
    for told, category in (("user", "user"), ("martian", "unknown"), (None, "unknown")):
        failed = next_step(answer(200, {"error": "why", "category": told}), "r-1")
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, RequestFailedError)
        assert (failed.error.category, failed.error.request_id) == (category, "r-1")
    silent = next_step(answer(200, {"error": {"odd": 1}}), "r-1")
    assert isinstance(silent, Failed)
    assert "no reason" in silent.error.message


def test_queue_states_are_read_and_odd_ones_are_unknown() -> None:
    def queue(**fields: Any) -> Queue | None:
        step = next_step(answer(408, fields), "r")
        assert isinstance(step, NotYet)
        return step.queue

    assert queue() is None
    assert queue(queue_state="paused_capacity", queue_state_reason="full") == Queue(
        "paused_capacity", "full"
    )
    assert queue(queue_state="dancing", queue_state_reason=7) == Queue("unknown", None)


@pytest.mark.parametrize("size", [None, "9", -1, 0])
def test_a_size_of_none_counts_as_zero(size: Any) -> None:
    step = next_step(
        answer(200, {"status": "complete_metadata", "response_payload_size": size}), ""
    )
    assert step == Sized(0)


@steady
@given(st.binary(max_size=200), st.integers(200, 599))
def test_no_answer_makes_a_poll_fail_by_itself(body: bytes, status: int) -> None:
    next_step(answer(status, body), "r")


@steady
@given(st.floats(0, 60), st.integers(0, 10_000))
def test_a_server_that_answers_at_once_is_polled_at_a_bounded_rate(held: float, quick: int) -> None:
    pause = polling.pause_after_not_yet(held, quick)
    assert pause == 0 if held >= 1 else 0.02 <= pause <= 1


# One poll for many samples.


@pytest.fixture
def shared(server: LoopbackServer) -> LoopbackServer:
    server.service.flags["sample_use_retrieve_futures"] = True
    return server


def test_samples_share_one_poll_and_complete_one_by_one(
    shared: LoopbackServer, connect: Connect
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    shared.hold("asample")
    handles = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(20)]
    shared.wait_for("asample", 20)
    shared.wait_for("retrieve_futures")
    assert shared.count("retrieve_future") == 0
    shared.release("asample")
    for handle in handles:
        assert len(handle.result(20).sequences) == 1
    assert shared.count("retrieve_future") == 20


def test_a_poll_that_is_refused_fails_its_waiters_each_with_its_own_line(
    shared: LoopbackServer, connect: Connect
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    # Every poll is refused: the second sample may begin to wait after the first poll has failed.
    rule = shared.on("retrieve_futures").reply(404, json_body={"detail": "no such"}).held().always()
    handles = [
        sampler.sample(PROMPT, 1, PARAMS),
        sampler.sample(PROMPT, 1, PARAMS),
    ]
    shared.wait_for("asample", 2)
    shared.wait_for("retrieve_futures")
    rule.release()
    errors = [handle.exception(10) for handle in handles]
    assert all(isinstance(error, NotFoundError) for error in errors)
    assert [len(error.__notes__) for error in errors if error is not None] == [1, 1]
    rule.off()
    assert len(sampler.sample(PROMPT, 1, PARAMS).result(10).sequences) == 1


def test_a_poll_that_breaks_is_sent_again_and_loses_nothing(
    shared: LoopbackServer, connect: Connect
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    shared.on("retrieve_futures").reply(503)
    shared.on("retrieve_futures").drop_before_answer()
    shared.on("retrieve_futures").reply(429, headers={"retry-after-ms": "5"})
    assert len(sampler.sample(PROMPT, 1, PARAMS).result(10).sequences) == 1
    assert len(sampler.sample(PROMPT, 1, PARAMS).result(10).sequences) == 1
    told = [call.decoded["retrieved_request_ids"] for call in shared.calls("retrieve_futures")]
    assert sum(map(len, told)) >= 1, "the server is told what it may forget"


def test_after_an_immediate_empty_answer_the_next_poll_waits(
    shared: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    shared.hold("asample")
    shared.on("retrieve_futures").reply(json_body={"cursor": 0, "completions": []}).times(5)
    handle = sampler.sample(PROMPT, 1, PARAMS)
    shared.wait_for("retrieve_futures", 6)
    shared.release("asample")
    handle.result(10)
    assert clock.sleeps.count(0.25) == 5


def test_a_completion_that_comes_before_its_waiter_is_kept(
    shared: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    poll = FuturesPoll(sampler._connection, sampler.sampling_session_id, 0)
    early = {
        "cursor": 2,
        "completions": [
            {"state": "finished", "request_id": "a", "response_payload_uncompressed_size": 77},
            {"state": "failed", "request_id": "b"},
        ],
    }
    shared.on("retrieve_futures").reply(json_body=early)

    async def both() -> list[int]:
        return [await poll.ready("b"), await poll.ready("a")]

    assert runtime.submit(both()).result(10) == [0, 77]
    assert shared.count("retrieve_futures") == 1


def test_a_json_result_for_a_protobuf_request_is_an_error(
    server: LoopbackServer, connect: Connect
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    server.on("retrieve_future").reply(json_body={"sequences": []})
    with pytest.raises(APIResponseValidationError, match="JSON"):
        sampler.sample(PROMPT, 1, PARAMS).result(10)


def test_an_awaited_sample_that_is_cancelled_ends(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.hold("asample")
    sampler = connect().create_sampling_client(base_model=MODEL)
    before = runtime.num_tasks

    async def run() -> None:
        task = asyncio.create_task(sampler.sample_async(PROMPT, 1, PARAMS))
        await asyncio.to_thread(server.wait_for, "retrieve_future")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    server.wait_until(lambda: runtime.num_tasks <= before)
