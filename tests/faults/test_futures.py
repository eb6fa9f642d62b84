"""Futures: resolved exactly once, waited for from anywhere, leaking nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.support.numbers import sampled_tokens
from tinkex import Outcome, Runtime, as_completed, await_many, types
from tinkex.errors import (
    ClientClosedError,
    FutureCancelledError,
    FutureTimeoutError,
    InternalServerError,
    WouldDeadlockError,
)

MODEL = "tiny/model"


def test_a_result_that_is_fetched_twice_resolves_its_future_once(
    server: LoopbackServer, connect: Connect
) -> None:
    """The first answer is cut after its headers; the server answers a second poll in full."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").drop_after_headers()
    resolved = []

    handle = training.forward_backward(make_data([3]), CROSS_ENTROPY)
    handle.add_done_callback(resolved.append)
    first, second = handle.result(20), handle.result(20)

    assert first is second
    assert resolved == [handle]
    promises = server.service.world.promises.values()
    (promise,) = [p for p in promises if p.kind == "forward_backward"]
    assert (promise.answers, promise.fetches) == (1, 2)


def test_many_waiters_see_one_result(server: LoopbackServer, connect: Connect) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handle = sampling.sample(PROMPT, 1, PARAMS)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(handle.result, 20) for _ in range(8)]
        server.wait_for("asample")
        server.release("asample")
        results = [wait.result(20) for wait in waits]

    assert all(result is results[0] for result in results)
    assert server.count("asample") == 1


def test_a_timeout_ends_the_wait_and_not_the_work(server: LoopbackServer, connect: Connect) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handle = sampling.sample(PROMPT, 1, PARAMS)

    with pytest.raises(FutureTimeoutError):
        handle.result(timeout=0.01)
    assert isinstance(handle.outcome(timeout=0.01).error, FutureTimeoutError)
    assert not handle.done()
    server.release("asample")

    assert handle.result(20).sequences
    assert server.count("asample") == 1


def test_an_awaited_timeout_ends_the_wait_and_not_the_work(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handle = sampling.sample(PROMPT, 1, PARAMS)

    async def impatient() -> None:
        with pytest.raises(FutureTimeoutError):
            await handle.result_async(timeout=0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)
        server.release("asample")
        assert (await handle).sequences

    asyncio.run(impatient())
    assert server.count("asample") == 1


def test_cancelling_samples_leaves_no_task_and_no_poll_behind(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    idle, connections = runtime.num_tasks, server.open_connections
    server.hold("asample")
    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(10)]
    server.wait_for("retrieve_future", 10)
    assert runtime.num_tasks > idle

    assert all(handle.cancel() for handle in handles)

    assert all(handle.cancelled() for handle in handles)
    assert isinstance(handles[0].outcome(1).error, FutureCancelledError)
    server.wait_until(lambda: runtime.num_tasks == idle)
    server.wait_until(lambda: server.open_connections <= connections + 10)
    server.release("asample")
    assert server.count("retrieve_future") == 10


def test_a_cancelled_sample_is_sent_to_a_server_that_supports_it(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.dynamic_flags["sample_cancel_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handle = sampling.sample(PROMPT, 1, PARAMS)
    server.wait_for("retrieve_future")

    handle.cancel()

    server.wait_for("cancel_future")
    (promise,) = server.service.world.promises.values()
    server.wait_until(lambda: promise.is_cancelled)


def test_a_sample_cancelled_while_it_is_sent_is_cancelled_once_it_has_an_id(
    server: LoopbackServer, connect: Connect
) -> None:
    """The server has it by then and works on it; only the answer says under which id."""
    server.service.dynamic_flags["sample_cancel_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    answer = server.on("asample").hold()
    handle = sampling.sample(PROMPT, 1, PARAMS)
    server.wait_for("asample")

    assert handle.cancel()
    answer.release()

    server.wait_for("cancel_future")
    (promise,) = server.service.world.promises.values()
    server.wait_until(lambda: promise.is_cancelled)


def test_a_stopped_runtime_cancels_its_samples_on_the_server(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.service.dynamic_flags["sample_cancel_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(10)]
    server.wait_for("retrieve_future", 10)

    runtime.stop()

    assert all(promise.is_cancelled for promise in server.service.world.promises.values())
    assert all(handle.done() for handle in handles)


def test_a_server_that_takes_no_cancels_does_not_hold_up_the_end(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.service.dynamic_flags["sample_cancel_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handle = sampling.sample(PROMPT, 1, PARAMS)
    server.wait_for("retrieve_future")
    silent = server.on("cancel_future").hold().always()

    runtime.stop()

    assert handle.done()
    assert not runtime.is_running
    silent.release()


def test_a_cancelled_training_request_keeps_its_place(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    """Its number was taken, so it is still sent: a hole would stop everything behind it."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    idle = runtime.num_tasks
    held = server.on("forward_backward").hold()

    cancelled = training.forward_backward(make_data([3]), CROSS_ENTROPY)
    stepped = training.optim_step(types.AdamParams())
    cancelled.cancel()
    held.release()

    assert stepped.outcome(20).ok
    assert isinstance(cancelled.outcome(1).error, FutureCancelledError)
    assert server.applied() == [(1, "forward_backward"), (2, "optim_step")]
    server.wait_until(lambda: runtime.num_tasks == idle)


def test_a_finished_future_cannot_be_cancelled(server: LoopbackServer, connect: Connect) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    handle = sampling.sample(PROMPT, 1, PARAMS)
    handle.result(20)

    assert handle.cancel() is False
    assert handle.outcome(1).ok


def test_waiting_on_the_loop_thread_is_refused(server: LoopbackServer, connect: Connect) -> None:
    """A callback runs on the runtime's thread; blocking there would wait for itself."""
    service = connect()
    sampling = service.create_sampling_client(base_model=MODEL)
    training = service.create_lora_training_client(base_model=MODEL)
    server.hold("asample")
    server.hold("optim_step")
    slow = sampling.sample(PROMPT, 1, PARAMS)
    caught: concurrent.futures.Future[Outcome[object]] = concurrent.futures.Future()

    def block(_: object) -> None:
        caught.set_result(slow.outcome(5))

    training.optim_step(types.AdamParams()).add_done_callback(block)
    server.release("optim_step")

    assert isinstance(caught.result(20).error, WouldDeadlockError)
    server.release("asample")
    assert slow.outcome(20).ok


def test_blocking_calls_work_under_a_running_loop(server: LoopbackServer, connect: Connect) -> None:
    """As in a notebook: `.result()` inside a coroutine, and `await` beside it."""

    async def cell() -> tuple[list[int], float]:
        service = connect()
        sampling = service.create_sampling_client(base_model=MODEL)
        training = service.create_lora_training_client(base_model=MODEL, rank=8)
        sampled = sampling.sample(PROMPT, 1, PARAMS).result(20)
        passed = await training.forward_backward(make_data([3]), CROSS_ENTROPY)
        return sampled.sequences[0].tokens, passed.metrics["loss:sum"]

    assert asyncio.run(cell()) == (sampled_tokens([1, 2, 3], 5, 0, 4), loss_of([3]))


def test_await_many_keeps_order_and_mixes_outcomes(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").reply(500).when(lambda body: body["seq_id"] == 1)

    outcomes = await_many([sampling.sample(PROMPT, 1, PARAMS) for _ in range(3)], timeout=20)

    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, InternalServerError)


def test_await_many_gives_each_its_own_timeout_outcome(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(3)]

    outcomes = await_many(handles, timeout=0.02)

    assert [type(outcome.error) for outcome in outcomes] == [FutureTimeoutError] * 3
    server.release("asample")
    assert all(outcome.ok for outcome in await_many(handles, timeout=20))


def test_as_completed_yields_each_handle_once(server: LoopbackServer, connect: Connect) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(20)]

    finished = list(as_completed(handles, timeout=20))

    assert sorted(map(id, finished)) == sorted(map(id, handles))


def test_an_error_names_the_line_that_submitted_the_work(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").reply(500)

    with pytest.raises(InternalServerError) as caught:
        sampling.sample(PROMPT, 1, PARAMS).result(20)

    assert any("test_futures.py" in note for note in caught.value.__notes__)


def test_stopping_a_runtime_resolves_what_was_outstanding(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    service = connect()
    sampling = service.create_sampling_client(base_model=MODEL)
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    server.hold("asample")
    server.hold("optim_step")
    handles = [sampling.sample(PROMPT, 1, PARAMS), training.optim_step(types.AdamParams())]
    server.wait_for("asample")
    server.wait_for("optim_step")

    runtime.stop()

    assert [type(outcome.error) for outcome in await_many(handles, timeout=5)] == [
        ClientClosedError
    ] * 2
    with pytest.raises(ClientClosedError):
        sampling.sample(PROMPT, 1, PARAMS).result(10)


def test_calls_from_many_threads_keep_one_order(server: LoopbackServer, connect: Connect) -> None:
    """Numbers are taken in the callers' threads: none is missing, none is used twice."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda _: training.optim_step(types.AdamParams()), range(40)))

    assert all(outcome.ok for outcome in await_many(handles, timeout=30))

    assert server.applied() == [(seq_id, "optim_step") for seq_id in range(1, 41)]
    arrived = [request.decoded["seq_id"] for request in server.calls("optim_step")]
    assert arrived == list(range(1, 41)), "sent in the order of their numbers, each once"


def test_a_request_leaves_only_when_the_one_before_was_taken(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    held = server.on("optim_step").hold()

    handles = [training.optim_step(types.AdamParams()) for _ in range(3)]
    server.wait_for("optim_step")
    with pytest.raises(FutureTimeoutError):
        handles[0].result(0.02)
    assert server.count("optim_step") == 1
    held.release()

    assert all(outcome.ok for outcome in await_many(handles, 20))
    assert server.count("optim_step") == 3


def test_handles_without_a_waiter_do_their_work(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    for _ in range(3):
        training.optim_step(types.AdamParams())

    server.wait_until(lambda: len(server.history()) == 3)
    assert server.applied() == [(n, "optim_step") for n in (1, 2, 3)]
