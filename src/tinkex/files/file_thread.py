"""A background thread for file work, so that callers need not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["FileThread"]

T = TypeVar("T")


class FileThread:
    """A thread for file work, started with its first job; jobs run in order.

    It does not keep the process from ending: a folder that is being written then does not appear.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Submits a job; returns a future of its result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        result: Future[T] = Future()
        self._waiting.put((result, work))
        return result

    def close(self) -> None:
        """Returns when all submitted jobs are done."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            result, work = job
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)
            del job, result, work  # what was written may be large, and the next may be long to come
