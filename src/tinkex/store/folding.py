"""Folding SQLite's write-ahead log into its file beside the writer.

By itself SQLite does so within a commit, now and then, and that commit waits until the disk has
taken thousands of pages. Done often by a thread of its own, the writer finds only the last pages
left, and its log begins anew. Where not much is written the thread sleeps, and SQLite's own way is
good enough.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Folding"]

_JOBS_BETWEEN = 256
_PAUSE_S = 0.1
_PAUSE_AFTER_FAILURE_S = 5.0

_logger = logging.getLogger(__name__)


class Folding:
    """A thread that folds while much is written. `connect` gives a driver's connection."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._num_jobs = 0
        self._is_due = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tinkex-store-fold", daemon=True)
        self._thread.start()

    def wrote(self, num_jobs: int) -> None:
        """Counts what was committed. For the writer's thread."""
        self._num_jobs += num_jobs
        if self._num_jobs >= _JOBS_BETWEEN:
            self._num_jobs = 0
            self._is_due.set()

    def close(self) -> None:
        """Returns when nothing is folded any more."""
        self._is_over.set()
        self._is_due.set()
        self._thread.join()

    def _run(self) -> None:
        while self._is_due.wait() and not self._is_over.is_set():
            self._is_due.clear()
            pause_s = _PAUSE_S
            try:
                self._fold()
            except Exception as error:  # the disk, most likely: whoever writes is told
                _logger.warning("The log was not folded in: %s", error)
                pause_s = _PAUSE_AFTER_FAILURE_S
            self._is_over.wait(pause_s)

    def _fold(self) -> None:
        connection = self._connect()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            connection.close()
