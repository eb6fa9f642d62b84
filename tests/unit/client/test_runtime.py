"""The runtime: one owner of thread, sockets and tasks, from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, make_data
from tests.support.fixtures import Connect, make_config
from tests.support.leaks import client_threads, no_new_threads
from tests.support.loopback import LoopbackServer
from tests.support.waiting import wait_until
from tinkex import AdamParams, Runtime, ServiceClient, default_runtime
from tinkex.client.submit_site import submit_site
from tinkex.errors import ClientClosedError, TinkexError, ValidationError

MODEL = "tiny/model"


async def value(result: Any = 3) -> Any:
    return result


async def failure(error: BaseException) -> Any:
    raise error


async def for_ever() -> None:
    await asyncio.Event().wait()


# Starting and stopping.


def test_it_starts_by_itself_and_stays_down_after_a_stop() -> None:
    with no_new_threads():
        runtime = Runtime()
        assert not runtime.is_running
        assert runtime.submit(value()).result(5) == 3
        assert runtime.is_running
        runtime.stop()
        runtime.stop()
        assert not runtime.is_running
        with pytest.raises(ClientClosedError):
            runtime.submit(value())
        with pytest.raises(ClientClosedError):
            _ = runtime.pools
        assert runtime.start().submit(value(4)).result(5) == 4
        runtime.stop()


def test_starting_twice_keeps_the_one_thread(runtime: Runtime) -> None:
    before = client_threads()
    assert runtime.start() is runtime
    assert client_threads() == before


def test_a_block_starts_and_stops_it() -> None:
    with no_new_threads(), Runtime() as runtime:
        assert runtime.is_running


def test_a_stop_from_its_own_thread_is_refused_and_harms_nothing(runtime: Runtime) -> None:
    async def stop() -> None:
        runtime.stop()

    with pytest.raises(ClientClosedError, match="own thread"):
        runtime.submit(stop()).result(5)
    assert runtime.submit(value()).result(5) == 3


def test_submits_that_race_with_a_stop_end_one_way_or_the_other() -> None:
    """Whatever the timing, a Future that was handed out is resolved."""
    for _ in range(20):
        runtime = Runtime().start()
        handles: list[Any] = []
        begun = threading.Event()

        def submit(runtime: Runtime = runtime, handles: Any = handles, begun: Any = begun) -> None:
            try:
                while True:
                    handles.append(runtime.submit(value()))
                    begun.set()
            except ClientClosedError:
                pass

        thread = threading.Thread(target=submit)
        thread.start()
        begun.wait(5)
        runtime.stop()
        thread.join(5)
        assert not thread.is_alive()
        assert all(handle.outcome(5).value in (3, None) for handle in handles)
        assert all(handle.done() for handle in handles)


def test_what_a_cancelled_task_begins_is_ended_too() -> None:
    """Only what was begun by `spawn_last` is given time at a stop."""
    ended = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("tidy")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            runtime.spawn(tidy())

    runtime = Runtime().start()
    handle = runtime.submit(work())
    wait_until(lambda: runtime.num_tasks == 1)
    runtime.stop()
    assert ended == ["tidy"] or runtime.num_tasks == 0
    assert isinstance(handle.outcome(5).error, ClientClosedError)


def test_final_requests_are_waited_for(clock: FakeClock) -> None:
    runtime = Runtime().start()
    said = []

    async def last() -> None:
        await asyncio.sleep(0.02)
        said.append("goodbye")

    runtime.submit_last(last())
    runtime.stop()
    assert said == ["goodbye"]


def test_two_runtimes_share_nothing() -> None:
    with Runtime() as one, Runtime() as other:
        one.registry.put("key", 1)
        assert other.registry.lookup("key") is None
        one.stop()
        assert other.submit(value()).result(5) == 3


def test_the_default_runtime_is_one() -> None:
    assert default_runtime() is default_runtime()


# Errors and where they come from.


def notes_of(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if "submitted at" in note]


def test_an_error_names_the_line_once_however_many_layers_it_passed(
    server: LoopbackServer, connect: Connect
) -> None:
    server.on("create_session").reply(403, json_body={"detail": "no"}).always()
    service = connect()
    with pytest.raises(TinkexError) as caught:
        service.create_lora_training_client(base_model=MODEL)
    (note,) = notes_of(caught.value)
    assert __file__ in note


def test_those_who_share_a_failure_each_see_their_own_line(
    server: LoopbackServer, connect: Connect
) -> None:
    held = server.on("client_config").reply(403, json_body={"detail": "no"}).held()
    rest = connect().create_rest_client()
    first = rest.list_sessions()
    second = rest.list_sessions()
    server.wait_for("client_config")
    held.release()
    errors = [handle.exception(5) for handle in (first, second)]
    lines = [notes_of(error) for error in errors if error is not None]
    assert [len(each) for each in lines] == [1, 1]
    assert lines[0] != lines[1]
    assert errors[0] is not None
    assert [str(error) for error in errors] == [str(errors[0])] * 2


def test_work_of_the_package_itself_has_no_site(runtime: Runtime) -> None:
    async def inner() -> str | None:
        return submit_site()

    assert submit_site() is not None
    site = runtime.submit(inner()).result(5)
    assert site is None or "asyncio" not in site


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_inside_an_operation_reaches_only_its_caller(
    runtime: Runtime, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    handle = runtime.submit(failure(error))
    with pytest.raises(type(error)):
        handle.result(5)
    assert runtime.submit(value()).result(5) == 3


def test_an_exit_inside_a_callback_does_not_end_the_thread(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    async def held() -> None:
        await asyncio.to_thread(release.wait, 5)

    handle = runtime.submit(held())
    handle.add_done_callback(lambda _: sys.exit(1))
    release.set()
    assert handle.result(5) is None
    assert runtime.submit(value()).result(5) == 3


def test_an_error_inside_a_callback_is_logged_and_has_no_other_effect(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    handle = runtime.submit(value())
    handle.result(5)
    with caplog.at_level(logging.ERROR):
        handle.add_done_callback(lambda _: 1 / 0)
    assert "ZeroDivisionError" in caplog.text
    assert runtime.submit(value()).result(5) == 3


def test_a_send_that_fails_unseen_is_no_news(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled training request is still sent; if it is refused, no error is raised."""
    training = connect().create_lora_training_client(base_model=MODEL)
    held = server.on("optim_step").reply(422, json_body={"detail": "no"}).held()
    handle = training.optim_step(AdamParams())
    assert handle.cancel()
    server.wait_for("optim_step")
    held.release()
    training.get_info()
    server.wait_until(lambda: training._runtime.num_tasks <= 2)
    gc.collect()
    assert "never retrieved" not in caplog.text


# Use after the end.


def test_clients_of_a_stopped_runtime_say_so_and_a_service_begins_anew(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL)
    sampler = service.create_sampling_client(base_model=MODEL)
    runtime.stop()
    for use in uses_of(training, sampler):
        with pytest.raises(ClientClosedError):
            use().result(10)
    runtime.start()
    for use in uses_of(training, sampler):
        with pytest.raises(ClientClosedError, match="runtime has been stopped"):
            use().result(10)
    fresh = service.create_lora_training_client(base_model=MODEL)
    fresh.forward_backward(make_data([2]), CROSS_ENTROPY).result(10)
    assert server.count("create_session") == 2


def uses_of(training: Any, sampler: Any) -> list[Callable[[], Any]]:
    return [
        lambda: training.forward_backward(make_data([2]), CROSS_ENTROPY),
        lambda: training.optim_step(AdamParams()),
        lambda: sampler.sample(PROMPT, 1, PARAMS),
    ]


def test_clients_of_a_closed_service_say_so(server: LoopbackServer, connect: Connect) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL)
    sampler = service.create_sampling_client(base_model=MODEL)
    service.close().result(10)
    for use in uses_of(training, sampler):
        with pytest.raises(ClientClosedError, match="finished"):
            use().result(10)
    with pytest.raises(ClientClosedError):
        service.create_sampling_client(base_model=MODEL)
    with pytest.raises(ClientClosedError):
        service.create_rest_client().list_sessions().result(10)
    assert service.close().result(5) is None
    assert server.count("session_finish") <= 1


def test_a_stop_in_the_middle_of_queued_requests_resolves_them_all(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    held = server.on("forward_backward").hold()
    handles = [training.forward_backward(make_data([2]), CROSS_ENTROPY) for _ in range(5)]
    server.wait_for("forward_backward")
    runtime.stop()
    held.release()
    assert all(isinstance(handle.outcome(5).error, ClientClosedError) for handle in handles)
    assert server.count("forward_backward") == 1


# Clients without references.


def test_dropped_clients_stop_their_timers(
    server: LoopbackServer, runtime: Runtime, clock: FakeClock
) -> None:
    service = ServiceClient(config=make_config(server, heartbeat_interval_s=100), runtime=runtime)
    training = service.create_lora_training_client(base_model=MODEL)
    clock.wait_for_sleepers(2)
    del service
    gc.collect()
    clock.advance(100)
    server.wait_for("session_heartbeat")  # the training client still lives
    training.optim_step(AdamParams()).result(10)
    del training
    gc.collect()
    clock.wait_for_sleepers(1)
    clock.advance(300)
    wait_until(lambda: gc.collect() >= 0 and clock.advance(300) is None and runtime.num_tasks == 0)
    beats = server.count("session_heartbeat")
    clock.advance(1000)
    assert server.count("session_heartbeat") == beats


def test_work_under_way_keeps_its_session_alive(
    server: LoopbackServer, runtime: Runtime, clock: FakeClock
) -> None:
    server.hold("optim_step")
    service = ServiceClient(config=make_config(server, heartbeat_interval_s=100), runtime=runtime)
    handle = service.create_lora_training_client(base_model=MODEL).optim_step(AdamParams())
    del service
    server.wait_for("retrieve_future")
    gc.collect()
    clock.wait_for_sleepers(2)
    clock.advance(100)
    server.wait_for("session_heartbeat")
    server.release("optim_step")
    assert handle.result(10).metrics is not None


def test_a_dropped_sampler_leaves_the_registry(connect: Connect, runtime: Runtime) -> None:
    service = connect()
    sampler = service.create_sampling_client(base_model=MODEL)
    key = ("config", sampler.client_id)
    assert runtime.registry.lookup(key) is not None
    del sampler
    gc.collect()
    assert runtime.registry.lookup(key) is None


# Signals, loops and forks.


def test_ctrl_c_ends_a_wait_at_once(runtime: Runtime) -> None:
    handle = runtime.submit(for_ever())
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    began = time.monotonic()
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        handle.result()
    assert time.monotonic() - began < 2
    assert not handle.done()
    assert handle.cancel()


def test_a_signal_handler_may_submit_and_wait(runtime: Runtime) -> None:
    seen: list[Any] = []

    def handler(number: int, frame: Any) -> None:
        seen.append(runtime.submit(value()).result(5))

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert runtime.submit(value()).result(5) == 3
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert set(seen) == {3}


def test_asyncio_run_twice_in_a_row(server: LoopbackServer, connect: Connect) -> None:
    service = connect()

    async def train() -> float:
        training = await service.create_lora_training_client_async(base_model=MODEL)
        handle = await training.forward_backward_async(make_data([2, 3]), CROSS_ENTROPY)
        return (await handle).metrics["loss:sum"]

    assert asyncio.run(train()) == asyncio.run(train())


def test_a_result_for_a_loop_that_is_gone_is_no_error(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    async def held() -> int:
        await asyncio.to_thread(release.wait, 5)
        return 7

    handle = runtime.submit(held())

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await handle.result_async(0.01)

    asyncio.run(give_up())
    with caplog.at_level(logging.ERROR):
        release.set()
        assert handle.result(5) == 7
        runtime.submit(value()).result(5)
    assert caplog.records == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_neither_waits_for_nor_disturbs_its_parents_work(
    server: LoopbackServer, connect: Connect, runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    server.hold("optim_step")
    handle = training.optim_step(AdamParams())
    server.wait_for("retrieve_future", 2)
    pid = os.fork()
    if not pid:  # pragma: no cover - the child
        try:
            outcome = handle.outcome(5)
            gc.collect()
            told = isinstance(outcome.error, ClientClosedError)
            with pytest.raises(ClientClosedError):
                training.optim_step(AdamParams()).result(10)
        except BaseException:
            os._exit(9)
        os._exit(0 if told else 8)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    server.release("optim_step")
    assert handle.result(10).metrics is not None
    output = capfd.readouterr()
    assert "Unclosed" not in output.err
    assert "destroyed" not in output.err


def test_threads_share_one_client(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    results: list[float] = []

    def work() -> None:
        for _ in range(5):
            output = training.forward_backward(make_data([2]), CROSS_ENTROPY).result(20)
            results.append(output.metrics["loss:sum"])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 30
    assert [number for number, _ in server.applied()] == list(range(1, 31))


def test_tokenizers_are_cached_by_the_runtime(runtime: Runtime) -> None:
    assert runtime.tokenizers is runtime.tokenizers


def test_work_that_cannot_be_submitted_is_closed_unrun(runtime: Runtime) -> None:
    """No "coroutine was never awaited" is left behind (warnings are errors here)."""
    runtime.stop()
    work = value()
    with pytest.raises(ClientClosedError):
        runtime.submit(work)
    assert work.cr_frame is None


def test_a_wrong_argument_is_an_outcome_that_names_the_callers_own_line(
    connect: Connect,
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    error = sampler.sample(PROMPT, 0, PARAMS).outcome().error
    assert isinstance(error, ValidationError)
    assert f"submitted at {__file__}:" in error.__notes__[0]
    with pytest.raises(ValidationError, match="num_samples"):
        sampler.sample(PROMPT, 0, PARAMS).result(10)


def test_a_default_runtime_that_was_stopped_is_replaced() -> None:
    stopped = default_runtime().start()
    stopped.stop()
    fresh = default_runtime()
    try:
        assert fresh is not stopped
        assert fresh is default_runtime()
        assert fresh.submit(asyncio.sleep(0, "done")).result(10) == "done"
    finally:
        fresh.stop()
