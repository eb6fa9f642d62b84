"""A recovery snapshot on its way: the engine writes it while work goes on, then the store is told.

Nothing here waits. Only when a row of the store speaks of the folder is the snapshot kept; till
then recovery begins where it did before.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from tinkex import crashpoints
from tinkex.store import Database, StoreError, models
from tinkex.store.models import Snapshot, SnapshotBefore

__all__ = ["NotWrittenError", "SnapshotTask"]


class NotWrittenError(Exception):
    """There is no such snapshot, and no row speaks of it."""


class SnapshotTask:
    """What is being written of a model, as it was after one of its operations."""

    def __init__(
        self,
        db: Database,
        model_id: str,
        seq_id: int,
        folder: str,
        written: Future[int],
        began: float,
    ) -> None:
        self.model_id = model_id
        self.seq_id = seq_id
        self.folder = folder
        self.took_s = 0.0
        self.kept: Future[SnapshotBefore | None] = Future()  # None: the run is over
        self._db = db
        self._began = began
        written.add_done_callback(self._record)

    def _record(self, written: Future[int]) -> None:
        try:
            snapshot = Snapshot(folder=self.folder, size_bytes=written.result())
            crashpoints.passing("snapshot.whole")
            row = self._db.submit(models.record_snapshot, self.model_id, self.seq_id, snapshot)
        except StoreError as error:
            self.kept.set_exception(error)
        except Exception as error:  # that the engine is gone is for its next caller to find
            self.kept.set_exception(NotWrittenError(str(error)))
        else:
            row.add_done_callback(self._end)

    def _end(self, row: Future[SnapshotBefore | None]) -> None:
        self.took_s = time.monotonic() - self._began
        try:
            self.kept.set_result(row.result())
        except Exception as error:
            self.kept.set_exception(error)
