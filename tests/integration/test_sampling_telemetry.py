"""What telemetry says of samples, with a poll for each and with one poll for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect, make_config
from tests.support.heard import Heard, hearing
from tests.support.loopback import LoopbackServer
from tinkex import RetryPolicy, Runtime, ServiceClient
from tinkex.client.polling import Queue

MODEL = "tiny/model"
START, STOP = "tinkex.http.request.start", "tinkex.http.request.stop"
QUEUE = "tinkex.queue.state_change"
ATTEMPTS = "tinkex.retry.attempt."


@pytest.fixture(params=[False, True], ids=["own-poll", "shared-poll"])
def is_shared(request: pytest.FixtureRequest, server: LoopbackServer) -> bool:
    """Whether the server offers one poll for all samples of a client."""
    server.service.flags["sample_use_retrieve_futures"] = request.param
    return bool(request.param)


def _requests(heard: list[Heard], path: str) -> list[str]:
    return [each.event for each in heard if each.about.get("path") == path]


def test_each_request_is_an_event_and_no_queue_is(
    server: LoopbackServer, connect: Connect, is_shared: bool
) -> None:
    """R18, R19, R59: start and stop per logical request; sampling has no queue-state events."""
    server.on("retrieve_future").not_ready("paused_capacity").times(2)
    sampling = connect().create_sampling_client(base_model=MODEL)
    with hearing(START, STOP, QUEUE) as heard:
        sampling.sample(PROMPT, 1, PARAMS).result(20)

    assert _requests(heard, "/asample") == [START, STOP]
    assert _requests(heard, "/retrieve_future") == [START, STOP]
    shared = _requests(heard, "/retrieve_futures")
    assert shared == ([START, STOP] * (len(shared) // 2) if is_shared else [])
    assert bool(shared) == is_shared
    assert not [each for each in heard if each.event == QUEUE]


def test_the_wait_of_a_sample_lasts_from_its_promise_to_its_result(
    server: LoopbackServer, is_shared: bool
) -> None:
    """R19: the duration is that of the whole wait, whichever poll it is spent in."""
    clock = FakeClock()
    with Runtime(clock=clock) as runtime, hearing(STOP) as heard:
        service = ServiceClient(config=make_config(server), runtime=runtime)
        sampling = service.create_sampling_client(base_model=MODEL)
        server.hold("asample")
        handle = sampling.sample(PROMPT, 1, PARAMS)
        server.wait_for("retrieve_futures" if is_shared else "retrieve_future")
        clock.advance(80)
        server.release("asample")
        handle.result(20)

    (waited,) = [each for each in heard if each.about["path"] == "/retrieve_future"]
    assert waited.measured["duration"] == 80
    assert waited.about["sampling_session_id"] == sampling.sampling_session_id


def test_repeated_polls_are_events_of_attempts(
    server: LoopbackServer, connect: Connect, is_shared: bool
) -> None:
    """R19: start, retry with its delay, start, stop; all with a time."""
    route = "retrieve_futures" if is_shared else "retrieve_future"
    server.on(route).reply(503)
    sampling = connect().create_sampling_client(base_model=MODEL)
    with hearing(f"{ATTEMPTS}*") as heard:
        sampling.sample(PROMPT, 1, PARAMS).result(20)

    of_polls = [each for each in heard if each.about["work"] == f"/{route}"]
    assert [each.event.removeprefix(ATTEMPTS) for each in of_polls[:4]] == [
        "start",
        "retry",
        "start",
        "stop",
    ]
    assert [each.about["attempt"] for each in of_polls[:4]] == [0, 0, 1, 1]
    assert of_polls[0].measured["system_time"] > 0
    assert of_polls[1].measured["delay_ms"] == 500.0
    assert "503" in of_polls[1].about["error"]
    assert of_polls[3].measured["duration"] >= 0


def test_each_attempt_of_a_retried_sample_is_an_event(
    server: LoopbackServer, connect: Connect
) -> None:
    """R13, R19: `retry=RetryPolicy(...)` says what it does, and when it gives up."""
    server.on("asample").reply(429, headers={"retry-after-ms": "50"})
    service = connect()
    policy = RetryPolicy(max_retries=1)
    sampling = service.create_sampling_client(base_model=MODEL, retry=policy)
    with hearing(f"{ATTEMPTS}*") as heard:
        sampling.sample(PROMPT, 1, PARAMS).result(20)
        server.on("asample").reply(503).times(2)
        assert not sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    of_samples = [each for each in heard if each.about["work"] == "sample"]
    assert [each.event.removeprefix(ATTEMPTS) for each in of_samples] == [
        *("start", "retry", "start", "stop"),
        *("start", "retry", "start", "failed"),
    ]
    assert of_samples[1].measured["delay_ms"] == 50.0


def test_a_shared_poll_reports_the_queue_only_when_it_changes(
    server: LoopbackServer, connect: Connect
) -> None:
    """One event and one call of the observer for each change, however many samples wait."""
    flags = server.service.flags
    flags["sample_use_retrieve_futures"] = True
    flags["extensions"] = ["futures.queue_state"]
    paused = _answer("paused_capacity", "All places are taken.")
    server.on("retrieve_futures").reply(json_body=paused).times(3)
    server.on("retrieve_futures").reply(json_body=_answer("active", None)).times(2)
    server.on("retrieve_futures").reply(json_body=paused)
    sampling = connect().create_sampling_client(base_model=MODEL)
    reported: list[Queue] = []
    sampling.queue_observer = reported.append
    server.hold("asample")
    with hearing(QUEUE) as heard:
        handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(4)]
        server.wait_for("retrieve_futures", 7)
        server.release("asample")
        for handle in handles:
            handle.result(20)

    states = ["paused_capacity", "active", "paused_capacity", "active"]
    assert [queue.state for queue in reported] == states
    assert reported[0].reason == "All places are taken."
    assert [each.about["queue_state"] for each in heard] == states
    assert heard[0].about["queue_state_reason"] == "All places are taken."
    assert heard[0].about["sampling_session_id"] == sampling.sampling_session_id
    known = [call.decoded["known_queue_state"] for call in server.calls("retrieve_futures")]
    assert known[:7] == ["active", *["paused_capacity"] * 3, *["active"] * 2, "paused_capacity"]


def test_queue_states_are_requested_only_of_servers_that_announce_them(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["sample_use_retrieve_futures"] = True
    connect().create_sampling_client(base_model=MODEL).sample(PROMPT, 1, PARAMS).result(20)
    assert "known_queue_state" not in server.calls("retrieve_futures")[0].decoded


def _answer(state: str, reason: str | None) -> dict[str, Any]:
    return {
        "cursor": 0,
        "completions": [],
        "queue_state": state,
        "queue_state_reason": reason,
    }
