"""What all engine slots share: the store, the queues, and where models are."""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.config import SchedulerConfig
from tinkex.scheduler.operation_bodies import BodyCache
from tinkex.scheduler.placement import Placement
from tinkex.scheduler.queues.missing_numbers import MissingNumbers
from tinkex.scheduler.queues.planner import Planner
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.running.outcomes import Announce
from tinkex.scheduler.running.publishing import CountedPublish
from tinkex.scheduler.running.sample_result_writer import SampleResultWriter
from tinkex.scheduler.running.sample_streams import SampleStreams
from tinkex.scheduler.running.series_keeper import SeriesKeeper
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.scheduler.work_counters import WorkCounters
from tinkex.store import Database
from tinkex.store.disk_quota import DiskQuota

__all__ = ["SharedParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """One of each per scheduler."""

    config: SchedulerConfig
    db: Database
    bodies: BodyCache
    folders: DataFolders
    disk_quota: DiskQuota
    planner: Planner
    sample_queue: SampleQueue
    missing_numbers: MissingNumbers
    placement: Placement
    publish: CountedPublish
    announce: Announce
    series: SeriesKeeper
    sample_writer: SampleResultWriter
    streams: SampleStreams
    cleanup: SnapshotCleanup
    counters: WorkCounters
    wakeup: SlotWakeups  # guards the planner; notified when there is work
