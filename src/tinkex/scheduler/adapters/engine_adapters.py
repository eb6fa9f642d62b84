"""The adapters and samplers of one engine: builds the parts that look after them."""

from __future__ import annotations

from pathlib import Path

from tinkex.scheduler.adapters.adapter_writer import AdapterWriter
from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.adapters.recovery import Recovery
from tinkex.scheduler.adapters.sampler_cache import SamplerCache
from tinkex.scheduler.adapters.sampler_writer import SamplerWriter
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.adapters.snapshot_writer import SnapshotWriter
from tinkex.scheduler.adapters.snapshots import SnapshotPolicy, Snapshots
from tinkex.scheduler.config import SchedulerConfig
from tinkex.scheduler.operation_bodies import BodyCache
from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import Database

__all__ = ["EngineAdapters"]


class EngineAdapters:
    """The parts, lowest first: each knows only those built before it."""

    def __init__(
        self,
        supervisor: Supervisor,
        db: Database,
        bodies: BodyCache,
        folders: DataFolders,
        cleanup: SnapshotCleanup,
        config: SchedulerConfig,
    ) -> None:
        idle_s = config.adapter_idle_s
        self.supervisor = supervisor
        self.folders = folders
        self.evictor = Evictor()
        self.writer = AdapterWriter(supervisor, folders)
        self.cache = AdapterCache(supervisor, max_adapters=config.max_adapters, idle_s=idle_s)
        self.sampler_writer = SamplerWriter(supervisor, self.cache, self.writer)
        self.snapshot_writer = SnapshotWriter(
            supervisor, db, folders, self.cache, self.sampler_writer, self.writer, cleanup
        )
        self.recovery = Recovery(
            supervisor,
            db,
            bodies,
            folders,
            self.evictor,
            self.cache,
            self.writer,
            self.sampler_writer,
            self.snapshot_writer,
        )
        # Adapters register with the evictor before samplers: they are evicted first.
        self.snapshots = Snapshots(
            db,
            SnapshotPolicy(
                after_s=config.snapshot_after_s, after_operations=config.snapshot_after_operations
            ),
            self.evictor,
            self.cache,
            self.sampler_writer,
            self.snapshot_writer,
            self.recovery,
        )
        self.samplers = SamplerCache(
            supervisor, self.evictor, max_samplers=config.max_samplers, idle_s=idle_s
        )

    def readable(self, folder: Path) -> Path:
        """The folder, where this slot's engine can read it."""
        return folder if self.supervisor.is_remote else self.folders.fetch(folder)
