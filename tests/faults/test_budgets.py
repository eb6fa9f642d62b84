"""Bounds on what is under way at once: kept, and nothing is lost behind them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import Runtime, await_many, telemetry, types
from tinkex.errors import ClientClosedError

MODEL = "tiny/model"


@pytest.fixture
def clock() -> FakeClock:
    """Retries cost nothing; the timers of ten seconds and more stand still."""
    return FakeClock(skip_up_to=5)


@pytest.fixture
def settled(server: LoopbackServer) -> Callable[[str], int]:
    """How many requests of a route arrive until no more do."""

    def count(route: str) -> int:
        last, since = server.count(route), time.monotonic()
        while time.monotonic() - since < 0.05:
            if server.count(route) != last:
                last, since = server.count(route), time.monotonic()
            time.sleep(0.002)
        return last

    return count


def test_samples_in_flight_are_bounded(
    server: LoopbackServer, connect: Connect, settled: Callable[[str], int]
) -> None:
    server.hold("asample")
    sampling = connect(max_samples_in_flight=7).create_sampling_client(base_model=MODEL)

    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(30)]
    server.wait_for("asample", 7)
    assert settled("asample") == 7
    server.release("asample")

    assert all(outcome.ok for outcome in await_many(handles, 20))
    assert server.count("asample") == 30


def test_the_servers_bound_on_samples_is_kept(
    server: LoopbackServer, connect: Connect, settled: Callable[[str], int]
) -> None:
    server.service.flags["sample_max_concurrent_requests"] = 3
    server.hold("asample")
    sampling = connect().create_sampling_client(base_model=MODEL)

    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(9)]
    server.wait_for("asample", 3)
    assert settled("asample") == 3
    server.release("asample")

    assert all(outcome.ok for outcome in await_many(handles, 20))


def test_bytes_of_samples_being_submitted_are_bounded(
    server: LoopbackServer, connect: Connect, settled: Callable[[str], int]
) -> None:
    """A budget of 1 byte: every request passes, but alone."""
    server.service.flags["sample_dispatch_bytes_semaphore_size"] = 1
    sampling = connect().create_sampling_client(base_model=MODEL)
    held = server.on("asample").hold()

    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(5)]
    server.wait_for("asample")
    assert settled("asample") == 1
    held.release()

    assert all(outcome.ok for outcome in await_many(handles, 20))
    assert server.count("asample") == 5


def test_bytes_of_chunks_being_sent_are_bounded(
    server: LoopbackServer, connect: Connect, settled: Callable[[str], int]
) -> None:
    server.service.flags.update(fwdbwd_max_chunk_len=1, fwdbwd_dispatch_bytes_semaphore_size=1)
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    held = server.on("forward_backward").hold()

    passed = training.forward_backward(make_data([3, 4, 5]), CROSS_ENTROPY)
    server.wait_for("forward_backward")
    assert settled("forward_backward") == 1
    held.release()

    assert passed.result(20).metrics["loss:sum"] == loss_of([3, 4, 5])


def test_bytes_of_results_being_fetched_are_bounded(
    server: LoopbackServer, connect: Connect, settled: Callable[[str], int]
) -> None:
    """Announced results wait for room; the fetch itself is one at a time here."""
    server.service.flags["inflight_response_bytes_semaphore_size"] = 1
    server.service.inline_limit_bytes = 0
    sampling = connect().create_sampling_client(base_model=MODEL)
    held = server.on("retrieve_future").hold().when(lambda body: not body["allow_metadata_only"])

    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(4)]
    server.wait_for("retrieve_future", 5)
    assert settled("retrieve_future") == 5
    held.release()

    assert all(outcome.ok for outcome in await_many(handles, 20))
    assert server.count("retrieve_future") == 8


def test_cancelled_waiters_give_their_place_back(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.service.flags["sample_dispatch_bytes_semaphore_size"] = 1
    sampling = connect().create_sampling_client(base_model=MODEL)
    idle = runtime.num_tasks
    held = server.on("asample").hold()
    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(6)]
    server.wait_for("asample")

    for handle in handles[1:4]:
        handle.cancel()
    held.release()

    assert all(outcome.ok for outcome in await_many([handles[0], *handles[4:]], 20))
    server.wait_until(lambda: runtime.num_tasks == idle)
    assert server.count("asample") == 3


def test_a_sample_cancelled_at_once_leaves_nothing(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    idle = runtime.num_tasks

    server.hold("asample")  # no answer comes before it is cancelled
    for _ in range(50):
        assert sampling.sample(PROMPT, 1, PARAMS).cancel()

    server.release("asample")
    server.wait_until(lambda: runtime.num_tasks == idle)
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


def test_reports_go_to_the_server_only_if_enabled_and_end_with_the_session(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect(telemetry_to_server=True)
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").failed("exploded", "server")
    assert not training.optim_step(types.AdamParams()).outcome(20).ok

    service.close().result(20)

    sent = [event for batch in server.service.telemetry for event in batch["events"]]
    kinds = [event.get("event_name") or event["event"] for event in sent]
    assert kinds[0] == "SESSION_START"
    assert kinds[-1] == "SESSION_END"
    assert "tinkex.future.request_failed" in kinds
    assert "tml-a" not in str(server.service.telemetry)
    assert not telemetry.has_handlers("tinkex.future.request_failed")


def test_a_telemetry_endpoint_that_is_away_holds_nothing_up(
    server: LoopbackServer, connect: Connect
) -> None:
    """The official client retries for ever; here a few tries are made and the batch is dropped."""
    server.on("telemetry").html_502().always()
    service = connect(telemetry_to_server=True)
    sampling = service.create_sampling_client(base_model=MODEL)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    assert service.close().outcome(20).ok

    assert server.count("telemetry") <= 8
    assert server.count("finish_session") == 1


def test_a_stopped_runtime_listens_no_more(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    service = connect(telemetry_to_server=True)
    sampling = service.create_sampling_client(base_model=MODEL)

    runtime.stop()

    assert not telemetry.has_handlers("tinkex.future.request_failed")
    with pytest.raises(ClientClosedError):
        sampling.sample(PROMPT, 1, PARAMS).result(10)
