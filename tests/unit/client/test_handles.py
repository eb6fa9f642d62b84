"""Futures: every face of a handle, from threads, loops, callbacks and streams."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tinkex import (
    Future,
    Outcome,
    Runtime,
    as_completed,
    await_many,
    await_many_async,
    stream,
    stream_async,
)
from tinkex.errors import (
    APITimeoutError,
    FutureCancelledError,
    FutureTimeoutError,
    NotFoundError,
    TinkexError,
    WouldDeadlockError,
)


class Operation:
    """A Future whose end a test brings about."""

    def __init__(self) -> None:
        self.inner: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.cancels = 0
        self.handle: Future[Any] = Future(self.inner, on_cancel=self._note)

    def _note(self) -> None:
        self.cancels += 1


@pytest.fixture
def operation() -> Operation:
    return Operation()


def later(act: Any) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


# Results.


def test_a_resolved_handle_has_every_face(operation: Operation) -> None:
    handle = Future.resolved(3)
    assert handle.done()
    assert handle.result() == handle.result(0) == 3
    assert handle.exception() is None
    assert handle.outcome() == Outcome(value=3)
    assert handle.outcome().unwrap() == 3
    assert asyncio.run(handle.result_async()) == 3
    assert asyncio.run(handle.outcome_async()).ok
    assert not handle.cancel()
    assert not handle.cancelled()
    assert handle.future().result() == 3
    assert repr(handle) == "<Future finished>"
    assert "finished" in handle._repr_html_()


def test_a_failed_handle_has_every_face(operation: Operation) -> None:
    error = NotFoundError("gone", status=404)
    operation.inner.set_exception(error)
    handle = operation.handle
    with pytest.raises(NotFoundError):
        handle.result()
    assert handle.exception() is error
    assert handle.outcome().error is error
    assert not handle.outcome().ok
    with pytest.raises(NotFoundError):
        handle.outcome().unwrap()
    with pytest.raises(NotFoundError):
        asyncio.run(handle.result_async())
    assert asyncio.run(handle.outcome_async()).error is error
    assert repr(handle) == "<Future failed>"


def test_a_cancelled_handle_has_every_face(operation: Operation) -> None:
    handle = operation.handle
    assert repr(handle) == "<Future running>"
    assert handle.cancel()
    assert handle.cancel(), "again, as for the standard library's"
    assert handle.cancelled()
    assert handle.done()
    with pytest.raises(FutureCancelledError):
        handle.result()
    assert isinstance(handle.exception(), FutureCancelledError)
    assert isinstance(handle.outcome().error, FutureCancelledError)
    with pytest.raises(FutureCancelledError):
        asyncio.run(handle.result_async())
    assert isinstance(asyncio.run(handle.outcome_async()).error, FutureCancelledError)
    assert repr(handle) == "<Future cancelled>"


def test_a_handle_cancelled_while_awaited_wakes_its_waiters(operation: Operation) -> None:
    async def wait() -> Any:
        asyncio.get_running_loop().call_later(0.01, operation.handle.cancel)
        return await operation.handle.outcome_async()

    assert isinstance(asyncio.run(wait()).error, FutureCancelledError)


def test_an_outcome_never_raises(operation: Operation) -> None:
    operation.inner.set_exception(ZeroDivisionError("by what?"))
    for outcome in (operation.handle.outcome(), asyncio.run(operation.handle.outcome_async())):
        assert outcome.error is not None
        assert "by what?" in outcome.error.message
        assert isinstance(outcome.error.__cause__, ZeroDivisionError)


def test_a_wait_that_is_given_up_leaves_the_work_alone(operation: Operation) -> None:
    handle = operation.handle
    with pytest.raises(FutureTimeoutError):
        handle.result(0.001)
    with pytest.raises(FutureTimeoutError):
        handle.exception(0.001)
    assert isinstance(handle.outcome(0.001).error, FutureTimeoutError)
    with pytest.raises(FutureTimeoutError):
        asyncio.run(handle.result_async(0.001))
    assert isinstance(asyncio.run(handle.outcome_async(0.001)).error, FutureTimeoutError)
    assert operation.cancels == 0
    operation.inner.set_result(5)
    assert handle.result() == 5


def test_an_operations_own_timeout_is_not_taken_for_the_waits(operation: Operation) -> None:
    error = APITimeoutError("the server was silent")
    operation.inner.set_exception(error)
    for wait in (
        lambda: operation.handle.result(1),
        lambda: asyncio.run(operation.handle.result_async(1)),
    ):
        with pytest.raises(APITimeoutError) as caught:
            wait()
        assert caught.value is error


def test_a_result_that_comes_as_the_wait_ends_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = Operation()

    class Late(concurrent.futures.Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                self.set_result("just in time")
                raise TimeoutError
            return super().result(timeout)

    operation.handle = Future(Late())
    assert operation.handle.result(0.1) == "just in time"


# Threads and loops.


def test_many_threads_and_loops_see_one_result(operation: Operation) -> None:
    seen: list[Any] = []
    threads = [later(lambda: seen.append(operation.handle.result(5))) for _ in range(4)]
    threads += [
        later(lambda: seen.append(asyncio.run(operation.handle.result_async(5)))) for _ in range(4)
    ]
    operation.inner.set_result(9)
    for thread in threads:
        thread.join(5)
    assert seen == [9] * 8


def test_it_can_be_awaited_like_anything_else(operation: Operation) -> None:
    async def wait() -> list[Any]:
        asyncio.get_running_loop().call_later(0.01, operation.inner.set_result, 2)
        return await asyncio.gather(operation.handle, operation.handle)

    assert asyncio.run(wait()) == [2, 2]


def test_cancelling_one_wait_leaves_the_others(operation: Operation) -> None:
    async def wait() -> Any:
        first = asyncio.ensure_future(operation.handle.result_async())
        second = asyncio.ensure_future(operation.handle.result_async())
        await asyncio.sleep(0)
        first.cancel()
        operation.inner.set_result(4)
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(wait()) == 4
    assert operation.cancels == 0


def test_a_notebook_may_block_inside_its_running_loop(runtime: Runtime) -> None:
    """Jupyter's cells run inside a loop that is not the runtime's."""

    async def value() -> int:
        return 8

    async def cell() -> int:
        return runtime.submit(value()).result(5)

    assert asyncio.run(cell()) == 8


def test_a_blocking_wait_on_the_runtimes_thread_is_refused(runtime: Runtime) -> None:
    never = Runtime()

    async def work() -> Any:
        pending = runtime.submit(asyncio.sleep(60))
        try:
            with pytest.raises(WouldDeadlockError):
                pending.result(1)
            with pytest.raises(WouldDeadlockError):
                pending.exception(1)
            with pytest.raises(WouldDeadlockError):
                list(as_completed([pending]))
            return pending.outcome(1).error
        finally:
            pending.cancel()

    assert isinstance(runtime.submit(work()).result(5), WouldDeadlockError)
    never.stop()


# Callbacks and cancelling.


def test_callbacks_are_called_once_with_the_handle(operation: Operation) -> None:
    seen: list[Any] = []
    operation.handle.add_done_callback(seen.append)
    operation.inner.set_result(1)
    operation.handle.add_done_callback(seen.append)
    assert seen == [operation.handle, operation.handle]


def test_cancelling_stops_the_work_once(runtime: Runtime) -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    handle = runtime.submit(work())
    while not runtime.num_tasks:
        time.sleep(0.001)
    assert handle.cancel()
    assert ended.wait(5)
    assert isinstance(handle.outcome(5).error, FutureCancelledError)


# Several handles.


def test_outcomes_of_many_come_in_order_within_one_timeout(operation: Operation) -> None:
    failed = Operation()
    failed.inner.set_exception(TinkexError("no"))
    handles = [Future.resolved(1), operation.handle, failed.handle, Future.resolved(2)]
    for outcomes in (
        await_many(handles, 0.01),
        asyncio.run(await_many_async(handles, 0.01)),
    ):
        assert [outcome.ok for outcome in outcomes] == [True, False, False, True]
        assert isinstance(outcomes[1].error, FutureTimeoutError)
        assert outcomes[2].error is failed.inner.exception()


def test_handles_come_in_the_order_in_which_they_end() -> None:
    first, second = Operation(), Operation()
    second.inner.set_result("second")
    found = as_completed([first.handle, second.handle], 5)
    assert next(found) is second.handle
    first.inner.set_result("first")
    assert next(found) is first.handle
    assert list(found) == []


def test_what_does_not_end_in_time_is_reported(operation: Operation) -> None:
    with pytest.raises(FutureTimeoutError):
        list(as_completed([operation.handle], 0.001))


class Fan:
    """Hands out operations and counts how many are open at once."""

    def __init__(self) -> None:
        self.begun: list[Operation] = []
        self.most = 0

    def submit(self, item: Any) -> Future[Any]:
        operation = Operation()
        self.begun.append(operation)
        self.most = max(self.most, sum(not each.inner.done() for each in self.begun))
        # Ends from another thread: what streams has to wait for it.
        later(lambda: operation.inner.set_result(item) if not operation.inner.done() else None)
        return operation.handle


def test_a_stream_keeps_order_and_its_bound() -> None:
    fan = Fan()
    outcomes = stream(fan.submit, iter(range(50)), max_in_flight=4)
    assert [outcome.unwrap() for outcome in outcomes] == list(range(50))
    assert fan.most <= 4


def test_a_stream_takes_items_only_as_it_goes() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    outcomes = stream(Future.resolved, items(), max_in_flight=3)
    next(outcomes)
    assert len(taken) == 3
    outcomes.close()  # type: ignore[attr-defined]


def test_a_stream_that_is_left_cancels_what_is_under_way() -> None:
    begun: list[Operation] = []

    def submit(number: int) -> Future[Any]:
        begun.append(Operation())
        if number == 0:
            begun[-1].inner.set_result(0)
        return begun[-1].handle

    outcomes = stream(submit, range(10), max_in_flight=3)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert [operation.cancels for operation in begun] == [0, 1, 1]


def test_an_async_stream_does_the_same() -> None:
    fan, begun = Fan(), []

    def pending(number: int) -> Future[Any]:
        begun.append(Operation())
        if number == 0:
            begun[-1].inner.set_result(0)
        return begun[-1].handle

    async def run() -> list[Any]:
        found = [
            outcome.unwrap()
            async for outcome in stream_async(fan.submit, range(30), max_in_flight=4)
        ]
        left = stream_async(pending, range(10), max_in_flight=2)
        assert (await anext(left)).unwrap() == 0
        await left.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(run()) == list(range(30))
    assert fan.most <= 4
    assert [operation.cancels for operation in begun] == [0, 1]
