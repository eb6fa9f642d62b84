"""What a new snapshot leaves behind: the one before it, and the bodies that it covers.

A thread of its own. Removing a folder is many short calls, after each of which a busy interpreter
is waited for; and the bodies lie all over the log, so they go a few at a time, with other writes
between. What a crash or the end of the server leaves of them is found when the next snapshot of the
model is kept, or goes with the rows when the log is trimmed.
"""

from __future__ import annotations

import logging
from functools import partial

from tinkex import crashpoints
from tinkex.files.file_thread import Background
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.store import Database, operations

__all__ = ["SnapshotCleanup"]

_logger = logging.getLogger(__name__)

_MOST_MODELS = 4096


class SnapshotCleanup:
    """Tidies up behind snapshots that a row of the store speaks of."""

    def __init__(self, db: Database, folders: DataFolders) -> None:
        self._db = db
        self._folders = folders
        self._background = Background("tinkex-sweeper")
        self._is_closing = False
        self._bare_to: dict[str, int] = {}  # up to which number a model's bodies are gone

    def start(self, model_id: str, seq_id: int, old_folders: list[str]) -> None:
        """Has the folders removed, and the bodies up to the number that the snapshot is of."""
        self._background.start(partial(self._sweep, model_id, seq_id, old_folders))

    def close(self) -> None:
        """Returns when the folders are gone; bodies can wait for another time."""
        self._is_closing = True
        self._background.close()

    def _sweep(self, model_id: str, seq_id: int, old_folders: list[str]) -> None:
        for folder in set(old_folders):
            self._folders.remove(self._folders.snapshot(folder))
        crashpoints.passing("snapshot.done")
        try:
            self._drop_bodies(model_id, seq_id)
        except Exception as error:  # nobody else would ever hear of it
            _logger.warning("Bodies that nobody needs stay for now: %r", error)

    def _drop_bodies(self, model_id: str, up_to: int) -> None:
        after = self._bare_to.get(model_id)
        if after is None:
            after = self._db.read(operations.last_without_body, model_id, up_to)
        while after < up_to and not self._is_closing:
            after = self._db.write_freeing(operations.drop_bodies, model_id, after, up_to)
            if len(self._bare_to) >= _MOST_MODELS:
                self._bare_to.clear()
            self._bare_to[model_id] = after
