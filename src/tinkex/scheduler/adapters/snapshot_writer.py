"""Takes recovery snapshots: writes one, records it in the store, and cleans up behind it.

One snapshot at a time may be pending, written while other work runs. It covers what was applied to
the adapter when it began. Until its row is in the store, recovery starts from the one before it.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future

import msgspec

from tinkex import crashpoints
from tinkex.scheduler.adapters.adapter_writer import AdapterWriter
from tinkex.scheduler.adapters.cache import AdapterCache, HeldAdapter
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.sampler_writer import SamplerWriter
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.adapters.snapshot_task import NotWrittenError, SnapshotTask
from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import Database, StoreError
from tinkex.store.models import Model, SnapshotRecord

__all__ = ["SnapshotWriter"]

_logger = logging.getLogger(__name__)


class _Pending(msgspec.Struct):
    """A snapshot being taken, and what of the adapter's work it covers."""

    task: SnapshotTask
    held: HeldAdapter
    dirty_s: float
    dirty_operations: int


class SnapshotWriter:
    """Takes snapshots of one engine's adapters. Used by the slot's thread only."""

    def __init__(
        self,
        supervisor: Supervisor,
        db: Database,
        folders: DataFolders,
        cache: AdapterCache,
        samplers: SamplerWriter,
        writer: AdapterWriter,
        cleanup: SnapshotCleanup,
    ) -> None:
        self._db = db
        self._folders = folders
        self._cache = cache
        self._samplers = samplers
        self._writer = writer
        self._cleanup = cleanup
        self.num_taken = 0  # since the start
        self._pending: _Pending | None = None
        self._unrecorded: dict[str, list[str]] = {}  # folders whose rows may or may not be there
        supervisor.on_loss(self._wait_for_pending)

    @property
    def is_pending(self) -> bool:
        """Whether a snapshot was started and not finished by `finish_snapshot`."""
        return self._pending is not None

    @property
    def is_written(self) -> bool:
        """Whether the pending snapshot waits for nothing but `finish_snapshot`."""
        return self._pending is not None and self._pending.task.kept.done()

    def start(self, model_id: str) -> None:
        """Starts a snapshot of the adapter as it is now; other work may run meanwhile."""
        began, folder = time.monotonic(), self._folders.new_id()
        path = self._folders.snapshot(folder)
        written = self._writer.start_saving(model_id, path, "all")
        self._pending = self._record(model_id, folder, written, began)

    def write(self, model_id: str) -> None:
        """Returns when recovery starts from the adapter's present state."""
        began, folder = time.monotonic(), self._folders.new_id()
        written: Future[int] = Future()
        written.set_result(self._writer.save(model_id, self._folders.snapshot(folder), "all"))
        self._finish(self._record(model_id, folder, written, began))

    def write_unrecorded(self, model_id: str) -> SnapshotRecord:
        """The adapter's present state on disk; the caller records it in the store."""
        folder = self._folders.new_id()
        size_bytes = self._writer.save(model_id, self._folders.snapshot(folder), "all")
        crashpoints.passing("snapshot.whole")
        return SnapshotRecord(folder=folder, size_bytes=size_bytes)

    def record_kept(self, before: Model) -> None:
        """Removes the snapshot the model had before the caller recorded a newer one."""
        crashpoints.passing("snapshot.kept")
        held = self._cache[before.model_id]
        held.dirty_s, held.dirty_operations = 0.0, 0
        old_folders = [] if before.snapshot_folder is None else [before.snapshot_folder]
        self._cleanup.start(before.model_id, held.seq_id, old_folders)

    def finish_snapshot(self) -> None:
        """Waits for the end of the pending snapshot and records what it covers.

        Raises:
            NotWrittenError: it was not written; recovery starts from the one before it.
            StoreError: whether its row is in the store is unknown.
        """
        pending, self._pending = self._pending, None
        assert pending is not None
        self._finish(pending)

    def wait_for(self, model_id: str) -> None:
        """Returns when no snapshot of the model is pending; one that failed stays due."""
        if self._pending is not None and self._pending.task.model_id == model_id:
            self._wait_for_pending()

    def drop(self, model_id: str) -> None:
        """Unloads the adapter without keeping its state."""
        self.wait_for(model_id)
        self._samplers.wait_for(model_id)
        self._cache.unload(model_id)

    def _wait_for_pending(self) -> None:
        if self._pending is None:
            return
        try:
            self.finish_snapshot()
        except (NotWrittenError, StoreError) as error:
            _logger.error("A snapshot was not kept: %s", error)

    def _record(self, model_id: str, folder: str, written: Future[int], began: float) -> _Pending:
        held = self._cache[model_id]
        self._unrecorded.setdefault(model_id, []).append(folder)
        task = SnapshotTask(self._db, model_id, held.seq_id, folder, written, began)
        return _Pending(task, held, held.dirty_s, held.dirty_operations)

    def _finish(self, pending: _Pending) -> None:
        task, held = pending.task, pending.held
        model_id = task.model_id
        try:
            before = task.kept.result()
        except NotWrittenError:  # an engine that died may have left the folder all the same
            self._unrecorded[model_id].remove(task.folder)
            self._folders.remove(self._folders.snapshot(task.folder))
            raise
        folders = self._unrecorded.pop(model_id)
        self.num_taken += 1
        if before is None:  # the run has ended, so no row names the snapshot
            self.drop(model_id)
        else:
            crashpoints.passing("snapshot.kept")
            folders.remove(task.folder)
            if before.folder is not None:
                folders.append(before.folder)
        held.saving_s = task.took_s
        held.dirty_s = max(0.0, held.dirty_s - pending.dirty_s)
        held.dirty_operations -= pending.dirty_operations
        self._cleanup.start(model_id, task.seq_id, folders)
