"""Removes what a new snapshot replaces: the one before it, and the operation bodies that it covers.

In a thread of its own: removing a folder is many short calls, each of which may wait for a busy
interpreter, and bodies lie all over the log, so they are deleted a few at a time, between other
writes. What a crash or the end of the server leaves is deleted after the next snapshot of the
model, or with its rows when the log is trimmed.
"""

from __future__ import annotations

import logging
from functools import partial

from tinkex import crashpoints
from tinkex.files.file_thread import FileThread
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.store import Database, operations

__all__ = ["SnapshotCleanup"]

_logger = logging.getLogger(__name__)

_MAX_MODELS = 4096


class SnapshotCleanup:
    """Cleans up after snapshots that are recorded in the store. Thread-safe."""

    def __init__(self, db: Database, folders: DataFolders) -> None:
        self._db = db
        self._folders = folders
        self._background = FileThread("tinkex-sweeper")
        self._is_closing = False
        self._deleted_to: dict[str, int] = {}  # up to which number a model's bodies are deleted

    def start(self, model_id: str, seq_id: int, old_folders: list[str]) -> None:
        """Has the folders removed, and the bodies up to the snapshot's number."""
        self._background.start(partial(self._sweep, model_id, seq_id, old_folders))

    def close(self) -> None:
        """Returns when the folders are removed; bodies are left to the next snapshot."""
        self._is_closing = True
        self._background.close()

    def _sweep(self, model_id: str, seq_id: int, old_folders: list[str]) -> None:
        for folder in set(old_folders):
            self._folders.remove(self._folders.snapshot(folder))
        crashpoints.passing("snapshot.done")
        try:
            self._drop_bodies(model_id, seq_id)
        except Exception as error:  # no caller would see it
            _logger.warning("Unneeded operation bodies were not deleted: %r", error)

    def _drop_bodies(self, model_id: str, up_to: int) -> None:
        after = self._deleted_to.get(model_id)
        if after is None:
            after = self._db.read(operations.last_without_body, model_id, up_to)
        while after < up_to and not self._is_closing:
            after = self._db.write_freeing(operations.drop_bodies, model_id, after, up_to)
            if len(self._deleted_to) >= _MAX_MODELS:
                self._deleted_to.clear()
            self._deleted_to[model_id] = after
