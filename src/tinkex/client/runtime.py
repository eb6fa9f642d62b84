"""Runtime: the one owner of everything shared by clients.

It owns the background loop thread, the HTTP pools, the registries and the timers; nothing is made
at import. A process has one default runtime, made when first needed; tests and servers may have
several side by side. After a fork the child starts with an empty one: threads and sockets do not
survive a fork, and two processes must not share a connection.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tinkex.client.clock import Clock
from tinkex.client.futures import Future
from tinkex.client.loop_thread import call_soon, cancel_all, run_loop
from tinkex.client.registry import Registry
from tinkex.client.runtime_jobs import RuntimeJob, SentJob
from tinkex.errors import ClientClosedError, TinkexError

if TYPE_CHECKING:
    from tinkex.client.pools import Pools
    from tinkex.tokenizers.tokenizer import TokenizerCache

S = TypeVar("S")
T = TypeVar("T")
log = logging.getLogger("tinkex")

EXIT_PATIENCE_S = 2.0


class Runtime:
    """Background loop, HTTP pools, registries and timers.

    >>> with Runtime() as runtime:
    ...     runtime.is_running
    True
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.generation = 0
        """How often it was stopped: what was opened before a stop is closed after it."""
        self._lock = threading.RLock()
        self._reset()
        _watch_forks(self)

    def _reset(self) -> None:
        """The state of a runtime that was never started."""
        self.registry = Registry()
        self.pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pools: Pools | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_tasks: set[asyncio.Task[Any]] = set()
        self._final_requests: list[Future[Any]] = []
        self._was_stopped = False

    def _forget_parent(self) -> list[Any]:
        """Called in the child of a fork: locks and threads of the parent mean nothing here.

        Returns what must not be collected: closing it would reach into the parent's loop.
        """
        if self._pools is not None:
            self._pools.abandon()
        tasks = [self._tasks, self._last_tasks, self._final_requests]
        inherited = [self._loop, self._thread, self._pools, *tasks]
        self._lock = threading.RLock()
        self._reset()
        return inherited

    @property
    def was_stopped(self) -> bool:
        """Whether it is down because `stop` was called."""
        return self._was_stopped

    @property
    def is_running(self) -> bool:
        """Whether the loop thread is up."""
        return self._thread is not None and self._thread.is_alive()

    def __repr__(self) -> str:
        return f"<Runtime {'running' if self.is_running else 'not running'}>"

    def start(self) -> Self:
        """Brings up the loop thread and the pools; does nothing if they are up.

        A runtime that was never started starts by itself when first used; one that was stopped
        stays down until it is started again.
        """
        with self._lock:
            if not self.is_running:
                self._start_thread()
        return self

    def _start_thread(self) -> None:
        from tinkex.client.pools import Pools

        self._was_stopped = False
        loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._pools = Pools()
        self._loop = loop
        self._thread = threading.Thread(
            target=run_loop, args=(loop, ready), name="tinkex-runtime", daemon=True
        )
        self._thread.start()
        ready.wait()
        _stop_at_exit(self)

    def stop(self, timeout: float = EXIT_PATIENCE_S) -> None:
        """Cancels what is under way, closes every socket and ends the thread; safe to repeat.

        Samples that end with it are cancelled on the server, within three quarters of `timeout`.
        """
        with self._lock:
            loop, thread, pools = self._loop, self._thread, self._pools
            if thread is threading.current_thread():
                raise ClientClosedError("A runtime cannot be stopped from its own thread.")
            self._loop = self._thread = None
            self._was_stopped = True
            self.generation += thread is not None
        if loop is None or thread is None:
            return
        if thread.is_alive():
            deadline = time.monotonic() + timeout
            unsent = [last.future() for last in self._final_requests if not last.done()]
            concurrent.futures.wait(unsent, timeout / 2)
            left_s = max(0.1, deadline - time.monotonic())
            ending = asyncio.run_coroutine_threadsafe(self._end_work(0.75 * left_s), loop)
            concurrent.futures.wait([ending], left_s)
            self._detach_pools(pools)
            closing = asyncio.run_coroutine_threadsafe(self._wind_down(pools), loop)
            concurrent.futures.wait([closing], max(0.1, deadline - time.monotonic()))
            loop.call_soon_threadsafe(loop.stop)
            thread.join(max(0.1, deadline - time.monotonic()))
        self._detach_pools(pools)
        self.registry = Registry()

    def _detach_pools(self, pools: Pools | None) -> None:
        """No new request after this; only the final requests may still use the pools before."""
        with self._lock:
            if self._pools is pools:
                self._pools = None

    async def _end_work(self, patience_s: float) -> None:
        """Cancels everything but the last tasks, among them those that this begins."""
        await cancel_all(lambda: self._tasks - self._last_tasks)
        if self._last_tasks:
            await asyncio.wait(self._last_tasks, timeout=patience_s)

    async def _wind_down(self, pools: Pools | None) -> None:
        await cancel_all(lambda: self._tasks)
        if pools is not None:
            await pools.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pools(self) -> Pools:
        """The HTTP pools of a running runtime."""
        if self._pools is None:
            raise ClientClosedError("The runtime has been stopped.")
        return self._pools

    @property
    def tokenizers(self) -> TokenizerCache:
        """The tokenizers loaded so far, by resolved id."""
        from tinkex.tokenizers.tokenizer import TokenizerCache

        return self.registry.get_or_create(("tokenizers",), TokenizerCache)

    @property
    def num_tasks(self) -> int:
        """How many operations and timers are under way."""
        return sum(not task.done() for task in list(self._tasks))

    def submit(
        self, work: Coroutine[Any, Any, T], *, cancels_on_interrupt: bool = False
    ) -> Future[T]:
        """Runs a coroutine on the loop and hands out the Future for its result.

        Args:
            work: The coroutine.
            cancels_on_interrupt: Whether Ctrl-C in a wait for the result cancels it.
        """
        return self._submit(RuntimeJob(self.spawn, work), cancels_on_interrupt)

    def submit_sent(
        self,
        send: Coroutine[Any, Any, S],
        collect: Callable[[Awaitable[S]], Coroutine[Any, Any, T]],
    ) -> Future[T]:
        """Runs `send`, which nothing cancels, and `collect(what it sends)`, which the Future does.

        For requests that have a number: one that is never sent would stop all behind it.
        """
        return self._submit(SentJob(self.spawn, send, collect))

    def _submit(self, job: RuntimeJob, cancels_on_interrupt: bool = False) -> Future[Any]:
        with self._lock:  # against a stop that begins between the question and the answer
            if not self._was_stopped and not self.is_running:
                self.start()
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                job.discard()
                raise ClientClosedError("The runtime has been stopped.")
            loop.call_soon_threadsafe(job.begin)
        return Future(
            job.inner,
            loop_thread_id=thread.ident,
            on_cancel=lambda: call_soon(loop, job.cancel),
            cancels_on_interrupt=cancels_on_interrupt,
        )

    def submit_last(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Like `submit`, for work that `stop` should let end, within its timeout."""
        last = self.submit(work)
        unsent = [other for other in self._final_requests if not other.done()]
        self._final_requests = [*unsent, last]
        return last

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a background task; only for code already on the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_last(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Like `spawn`, for last requests to the server: `stop` waits for them for a moment."""
        task: asyncio.Task[T] = self.spawn(work)
        self._last_tasks.add(task)
        task.add_done_callback(self._last_tasks.discard)
        return task


class _Process:
    """State of the process: its default runtime, and the runtimes to reset after a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.default: Runtime | None = None
        self.runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
        self.hooks_are_set = False
        self.inherited: list[Any] = []

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        for runtime in list(self.runtimes):
            self.inherited += runtime._forget_parent()

    def at_exit(self) -> None:
        for runtime in list(self.runtimes):
            try:
                runtime.stop(EXIT_PATIENCE_S)
            except TinkexError as error:
                log.debug("runtime did not stop cleanly: %s", error)


_process = _Process()


def _watch_forks(runtime: Runtime) -> None:
    with _process.lock:
        _process.runtimes.add(runtime)


def _stop_at_exit(runtime: Runtime) -> None:
    with _process.lock:
        _process.runtimes.add(runtime)
        if not _process.hooks_are_set:
            _process.hooks_are_set = True
            atexit.register(_process.at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_process.after_fork)


def default_runtime() -> Runtime:
    """The process's shared runtime: created at first use, and again after a stop."""
    with _process.lock:
        existing = _process.default
    if existing is not None and not existing.was_stopped:
        return existing
    made = Runtime()
    with _process.lock:
        if _process.default is existing:
            _process.default = made
        assert _process.default is not None
        return _process.default
