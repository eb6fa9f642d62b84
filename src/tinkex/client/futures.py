"""Futures: handles on work that runs on the runtime's loop.

A handle can be waited for from any thread (`.result()`), awaited from any loop (`await handle`),
and read without exceptions (`.outcome()`). It resolves exactly once. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from tinkex.client.short_tracebacks import shortened
from tinkex.errors import (
    ClientClosedError,
    FutureCancelledError,
    FutureTimeoutError,
    TinkexError,
    WouldDeadlockError,
)

T = TypeVar("T")
Item = TypeVar("Item")


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """ok(value) or error(TinkexError): one shape for everything that can happen.

    >>> Outcome(value=3).ok
    True
    """

    value: T | None = None
    error: TinkexError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def unwrap(self) -> T:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise shortened(self.error)
        return self.value  # type: ignore[return-value]


class Future(Generic[T]):
    """The result of an operation that is under way.

    Work starts when the handle is made, whether or not a caller waits for it. Giving up a wait (a
    timeout, a cancelled `await`) leaves the work alone; `.cancel()` stops it. Ctrl-C in a blocking
    wait for samples stops them, on the server too; training goes on.
    """

    __slots__ = ("_cancels_on_interrupt", "_inner", "_on_cancel", "_pid", "_thread_id")

    def __init__(
        self,
        inner: concurrent.futures.Future[T],
        *,
        loop_thread_id: int | None = None,
        on_cancel: Callable[[], None] | None = None,
        cancels_on_interrupt: bool = False,
    ) -> None:
        self._cancels_on_interrupt = cancels_on_interrupt
        self._inner = inner
        self._thread_id = loop_thread_id
        self._pid = os.getpid()
        self._on_cancel = on_cancel

    @classmethod
    def resolved(cls, value: T) -> Future[T]:
        """A handle whose result is already there.

        Args:
            value: The result.
        """
        inner: concurrent.futures.Future[T] = concurrent.futures.Future()
        inner.set_result(value)
        return cls(inner)

    def result(self, timeout: float | None = None) -> T:
        """The result, waited for; usable from every thread but the runtime's own.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.

        Raises:
            KeyboardInterrupt: Ctrl-C; samples are cancelled, here and on the server.
            FutureTimeoutError: it was not there in time; the work goes on, call again.
            WouldDeadlockError: called on the runtime's loop thread; use `await` there.
            TinkexError: what went wrong with the operation.
        """
        self._refuse_endless_wait()
        try:
            return self._inner.result(timeout)
        except TinkexError as error:
            raise shortened(error) from error.__cause__
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except concurrent.futures.CancelledError:
            raise _cancelled() from None
        except concurrent.futures.TimeoutError as error:
            if self._inner.done():  # with a timeout of its own, or just now
                return self._now()
            raise _timed_out(timeout) from error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error the operation ended with, waited for; None if it went well.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.
        """
        self._refuse_endless_wait()
        try:
            return self._inner.exception(timeout)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except concurrent.futures.CancelledError:
            return _cancelled()
        except concurrent.futures.TimeoutError as error:
            raise _timed_out(timeout) from error

    def outcome(self, timeout: float | None = None) -> Outcome[T]:
        """ok(result) or error(typed error), waited for; never raises.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.
        """
        try:
            return Outcome(value=self.result(timeout))
        except TinkexError as error:
            return Outcome(error=error)
        except Exception as error:
            return Outcome(error=_as_tinkex(error))

    async def result_async(self, timeout: float | None = None) -> T:
        """The result, awaited from any loop.

        Raises:
            FutureTimeoutError: it was not there in time; the work goes on.
        """
        self._refuse_other_process()
        if not self._inner.done():
            try:
                await asyncio.wait_for(self._done_here(), timeout)
            except TimeoutError as error:
                if not self._inner.done():
                    raise _timed_out(timeout) from error
        try:
            return self._now()
        except TinkexError as error:
            raise shortened(error) from error.__cause__

    async def outcome_async(self, timeout: float | None = None) -> Outcome[T]:
        """Like `outcome`, awaited; raises only if the awaiting task itself is cancelled."""
        try:
            return Outcome(value=await self.result_async(timeout))
        except TinkexError as error:
            return Outcome(error=error)
        except Exception as error:
            return Outcome(error=_as_tinkex(error))

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    async def _done_here(self) -> None:
        """Returns once the result is there, woken on the caller's own loop.

        Not `asyncio.wrap_future`: cancelling a wait must not cancel the work, and a loop that is
        closed by the time the result comes is no error.
        """
        loop = asyncio.get_running_loop()
        is_done = asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
                loop.call_soon_threadsafe(is_done.set)

        self._inner.add_done_callback(wake)
        await is_done.wait()

    def _now(self) -> T:
        """The result of a handle that is done."""
        try:
            return self._inner.result()
        except concurrent.futures.CancelledError:
            raise _cancelled() from None

    def done(self) -> bool:
        """Whether the result, or the error, is there."""
        return self._inner.done()

    def cancel(self) -> bool:
        """Stops the operation; False if it had already ended.

        Samples end on the server too, if it lets clients cancel. A training request that was
        already numbered is still sent, so that the order of the requests after it keeps no hole;
        what ends is the wait for its result.
        """
        cancelled = self._inner.cancel()
        if cancelled and self._on_cancel is not None:
            self._on_cancel()
        return cancelled

    def _interrupt(self) -> None:
        """What Ctrl-C in a blocking wait does to the work: nothing, unless it is sampling."""
        if self._cancels_on_interrupt:
            self.cancel()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._inner.cancelled()

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Calls `fn(handle)` once the result is there, on the thread that brings it.

        What `fn` raises is logged and not raised.

        Args:
            fn: Called with this Future, in the thread that ends it.
        """
        self._inner.add_done_callback(lambda _: fn(self))

    def future(self) -> concurrent.futures.Future[T]:
        """The plain `concurrent.futures.Future` underneath."""
        return self._inner

    def _refuse_endless_wait(self) -> None:
        if self._inner.done():
            return
        self._refuse_other_process()
        if self._thread_id == threading.get_ident():
            raise WouldDeadlockError(
                "A blocking wait on the runtime's own thread would never end: "
                "that thread has to do the work you wait for."
            )

    def _refuse_other_process(self) -> None:
        if self._pid != os.getpid() and not self._inner.done():
            raise ClientClosedError(
                "This Future was made before a fork; its work is done in the other process."
            )

    def __repr__(self) -> str:
        return f"<Future {_state(self._inner)}>"

    def _repr_html_(self) -> str:
        return f"<code>tinkex.Future</code>: {_state(self._inner)}"


def _state(inner: concurrent.futures.Future[Any]) -> str:
    if inner.cancelled():
        return "cancelled"
    if not inner.done():
        return "running"
    return "failed" if inner.exception() else "finished"


def _cancelled() -> FutureCancelledError:
    return FutureCancelledError("The operation was cancelled.")


def _timed_out(timeout: float | None) -> FutureTimeoutError:
    return FutureTimeoutError(f"No result within {timeout} s.")


def _as_tinkex(error: Exception) -> TinkexError:
    wrapped = TinkexError(f"{type(error).__name__}: {error}", code="unexpected")
    wrapped.__cause__ = error
    return wrapped


def await_many(handles: Iterable[Future[T]], timeout: float | None = None) -> list[Outcome[T]]:
    """The outcome of every handle, in order; what is not there in time is a timeout outcome.

    Args:
        handles: The Futures.
        timeout: Seconds for all of them; None for as long as it takes.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    awaited = list(handles)
    try:
        return [handle.outcome(_left(deadline)) for handle in awaited]
    except KeyboardInterrupt:
        _interrupt_all(awaited)
        raise


async def await_many_async(
    handles: Iterable[Future[T]], timeout: float | None = None
) -> list[Outcome[T]]:
    """Like `await_many`, without blocking the caller's loop.

    Args:
        handles: The Futures.
        timeout: Seconds for all of them; None for as long as it takes.
    """
    return list(await asyncio.gather(*(handle.outcome_async(timeout) for handle in handles)))


def as_completed(handles: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """The handles in the order in which they finish.

    Args:
        handles: The Futures.
        timeout: Seconds for all of them; None for as long as it takes.

    Raises:
        FutureTimeoutError: some are not finished in time.
    """
    by_inner = {handle.future(): handle for handle in handles}
    for handle in by_inner.values():
        handle._refuse_endless_wait()
    try:
        for inner in concurrent.futures.as_completed(by_inner, timeout):
            yield by_inner[inner]
    except KeyboardInterrupt:
        _interrupt_all(by_inner.values())
        raise
    except concurrent.futures.TimeoutError as error:
        raise _timed_out(timeout) from error


def stream(
    submit: Callable[[Item], Future[T]], items: Iterable[Item], *, max_in_flight: int = 64
) -> Iterator[Outcome[T]]:
    """The outcomes of `submit(item)` in the order of the items, at most so many under way.

    >>> list(stream(Future.resolved, [1, 2], max_in_flight=1))
    [Outcome(value=1, error=None), Outcome(value=2, error=None)]
    """
    waiting: list[Future[T]] = []
    try:
        for item in items:
            waiting.append(submit(item))
            if len(waiting) >= max_in_flight:
                yield waiting.pop(0).outcome()
        while waiting:
            yield waiting.pop(0).outcome()
    finally:
        for handle in waiting:
            handle.cancel()


async def stream_async(
    submit: Callable[[Item], Future[T]], items: Iterable[Item], *, max_in_flight: int = 64
) -> AsyncIterator[Outcome[T]]:
    """Like `stream`, for `async for`.

    Args:
        submit: Gives a Future for an item.
        items: Taken one by one, as there is space.
        max_in_flight: How many are under way at most.
    """
    waiting: list[Future[T]] = []
    try:
        for item in items:
            waiting.append(submit(item))
            if len(waiting) >= max_in_flight:
                yield await waiting.pop(0).outcome_async()
        while waiting:
            yield await waiting.pop(0).outcome_async()
    finally:
        for handle in waiting:
            handle.cancel()


def _interrupt_all(handles: Iterable[Future[Any]]) -> None:
    for handle in handles:
        handle._interrupt()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


APIFuture = Future
"""The official SDK's name for a handle."""
