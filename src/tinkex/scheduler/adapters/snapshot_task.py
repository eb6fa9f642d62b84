"""A recovery snapshot in progress: written while work goes on, then recorded in the store.

Nothing here blocks. A snapshot counts only once a row of the store names its folder; until then
recovery starts where it did before.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from tinkex import crashpoints
from tinkex.store import Database, StoreError, models
from tinkex.store.models import SnapshotBefore, SnapshotRecord

__all__ = ["NotWrittenError", "SnapshotTask"]


class NotWrittenError(Exception):
    """The snapshot was not written, and no row names it."""


class SnapshotTask:
    """One snapshot of a model, as it was after the operation `seq_id`."""

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
        self.kept: Future[SnapshotBefore | None] = Future()  # None: the run has ended
        self._db = db
        self._began = began
        written.add_done_callback(self._record)

    def _record(self, written: Future[int]) -> None:
        try:
            snapshot = SnapshotRecord(folder=self.folder, size_bytes=written.result())
            crashpoints.passing("snapshot.whole")
            row = self._db.submit(models.record_snapshot, self.model_id, self.seq_id, snapshot)
        except StoreError as error:
            self.kept.set_exception(error)
        except Exception as error:  # the engine's next caller notices if it is gone
            self.kept.set_exception(NotWrittenError(str(error)))
        else:
            row.add_done_callback(self._end)

    def _end(self, row: Future[SnapshotBefore | None]) -> None:
        self.took_s = time.monotonic() - self._began
        try:
            self.kept.set_result(row.result())
        except Exception as error:
            self.kept.set_exception(error)
