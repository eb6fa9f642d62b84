"""One submitted coroutine on its way: begun on the loop, ended in its Future.

Knows the loop thread's side of a Future alone; what runs where is `runtime`'s.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tinkex.client.submit_site import submit_site, with_site
from tinkex.errors import ClientClosedError

__all__ = ["RuntimeJob", "SentJob"]

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class RuntimeJob:
    """One submitted coroutine and the Future that waits for it."""

    __slots__ = ("inner", "site", "spawn", "task", "work")

    def __init__(self, spawn: Spawn, work: Coroutine[Any, Any, Any] | None) -> None:
        self.spawn, self.work = spawn, work
        self.inner: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.site = submit_site()
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        assert self.work is not None
        self.task = self.spawn(self.work)
        self.task.add_done_callback(self.finish)

    def discard(self) -> None:
        if self.work is not None:
            self.work.close()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Copies the task's end into the Future, unless that was cancelled meanwhile."""
        if task.cancelled():
            error: BaseException | None = ClientClosedError(
                "The operation was stopped because its client or runtime was closed."
            )
        else:
            error = task.exception()
        if not self.inner.set_running_or_notify_cancel():
            return
        if error is None:
            self.inner.set_result(task.result())
        else:
            self.inner.set_exception(with_site(error, self.site))


class SentJob(RuntimeJob):
    """A job in two parts: the first is finished even if the Future is cancelled."""

    __slots__ = ("collect", "send")

    def __init__(
        self,
        spawn: Spawn,
        send: Coroutine[Any, Any, Any],
        collect: Callable[[Awaitable[Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        super().__init__(spawn, None)
        self.send, self.collect = send, collect

    def begin(self) -> None:
        sent = self.spawn(self.send)
        sent.add_done_callback(_note_seen)
        shielded = asyncio.shield(sent)
        shielded.add_done_callback(_note_seen)
        self.work = self.collect(shielded)
        super().begin()

    def discard(self) -> None:
        self.send.close()


def _note_seen(task: asyncio.Future[Any]) -> None:
    """Ignores the error of a send whose Future was cancelled."""
    if not task.cancelled():
        task.exception()
