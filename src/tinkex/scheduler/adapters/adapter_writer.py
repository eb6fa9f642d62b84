"""Has one engine write adapters into folders, and removes what a lost engine left unfinished.

An engine writes a folder under a hidden name beside its place and renames it when it is complete.
Only the folders that this engine was writing are cleaned up: other engines may be writing too.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path

from tinkex.engine.interface import EngineFailure, StateScope
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.supervisor import Supervisor

__all__ = ["AdapterWriter"]


class AdapterWriter:
    """Writes adapters of one engine. Used by the slot's thread only."""

    def __init__(self, supervisor: Supervisor, folders: DataFolders) -> None:
        self._supervisor = supervisor
        self._folders = folders
        self._unfinished: set[Path] = set()
        supervisor.on_loss(self._remove_unfinished)

    def save(self, model_id: str, folder: Path, scope: StateScope) -> int:
        """The size in bytes of the folder, which is complete and published when this returns."""
        size_bytes = self.write(model_id, folder, scope)
        if not self._supervisor.is_remote:
            self._folders.publish(folder)
        return size_bytes

    def write(self, model_id: str, folder: Path, scope: StateScope) -> int:
        """The size in bytes of the folder, which is complete; the caller publishes it, unless the
        engine is remote and has done so."""
        engine = self._supervisor.engine
        self._unfinished.add(folder)
        try:
            size_bytes = engine.save_adapter(model_id, folder, scope)
        except Exception as error:
            self._end(folder, error)
            raise
        self._end(folder, None)
        return size_bytes

    def start_saving(self, model_id: str, folder: Path, scope: StateScope) -> Future[int]:
        """What `save` returns, of the adapter as it is now; other work may run meanwhile."""
        engine = self._supervisor.engine
        self._unfinished.add(folder)
        written = engine.start_saving(model_id, folder, scope)
        written.add_done_callback(partial(self._written, folder))
        return written if engine.is_remote else self._folders.publish_when_done(folder, written)

    def _written(self, folder: Path, written: Future[int]) -> None:
        self._end(folder, written.exception())

    def _end(self, folder: Path, error: BaseException | None) -> None:
        """An engine that refuses or meets a disk error leaves nothing; one that dies may."""
        if not isinstance(error, EngineFailure):
            self._unfinished.discard(folder)

    def _remove_unfinished(self) -> None:
        for folder in list(self._unfinished):
            self._folders.remove_staging(folder)
        self._unfinished.clear()
