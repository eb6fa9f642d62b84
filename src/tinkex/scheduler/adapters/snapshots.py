"""When recovery snapshots are due, and evictions, which take one first.

Snapshots are due when replaying everything would take long, so the time is summed over all
adapters. Those with most to replay go first, one at a time, written while work runs; only when the
limit itself is reached does work wait for them. Before one is taken, every ephemeral sampler saved
so far is on disk, so none is lost with it. While the disk fails none can be taken: work goes on,
there is more to replay, and they are retried.
"""

from __future__ import annotations

import logging
import time

import msgspec

from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.adapters.recovery import Recovery
from tinkex.scheduler.adapters.sampler_writer import SamplerWriter
from tinkex.scheduler.adapters.snapshot_task import NotWrittenError
from tinkex.scheduler.adapters.snapshot_writer import SnapshotWriter
from tinkex.store import Database, StoreError, models

__all__ = ["SnapshotPolicy", "Snapshots"]

_logger = logging.getLogger(__name__)

_EARLY = 0.8  # the share of the time limit at which snapshots start, one by one
_LATE = 2  # times the operation limit at which work waits for one adapter's snapshot
_SAVING_FACTOR = 2.0  # work between snapshots takes at least this many times what saving all takes
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When snapshots are due: engine time over all adapters, operations of one adapter."""

    after_s: float = 30.0
    after_operations: int = 500


class Snapshots:
    """Keeps the replay after a crash of one engine short. Used by the slot's thread only."""

    def __init__(
        self,
        db: Database,
        policy: SnapshotPolicy,
        evictor: Evictor,
        cache: AdapterCache,
        sampler_writer: SamplerWriter,
        writer: SnapshotWriter,
        recovery: Recovery,
    ) -> None:
        self._db = db
        self._policy = policy
        self._cache = cache
        self._sampler_writer = sampler_writer
        self._writer = writer
        self._recovery = recovery
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until = 0.0  # after the disk failed
        self._is_behind = False  # whether more snapshots are due than were taken
        evictor.register(self._evict_one)

    @property
    def has_work(self) -> bool:
        """Whether `maintain_snapshots` should be called although no work came since."""
        return self._is_behind or self._writer.is_written

    def maintain_snapshots(self) -> None:
        """Starts one snapshot that is due, waits for those that are late, evicts over the limit."""
        self._is_behind = False
        try:
            if self._writer.is_written:
                self._finish()
            if time.monotonic() < self._paused_until:
                return
            if not self._writer.is_pending and (due := self._due(early=True)) is not None:
                self._start(due)
            while (late := self._due(early=False)) is not None:
                if self._writer.is_pending:
                    self._finish()
                else:
                    self.snapshot(late)
            self._is_behind = not self._writer.is_pending and self._due(early=True) is not None
            self._evict_over_limit()
        except (NotWrittenError, StorageError, StoreError) as error:
            _logger.error("No snapshot can be kept; retrying in %g s: %s", self._pause_s, error)
            self._paused_until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def snapshot(self, model_id: str) -> None:
        """Returns when recovery starts from the adapter's present state."""
        self._writer.wait_for(model_id)
        if model_id not in self._cache or not self._cache[model_id].dirty_operations:
            return  # the pending one covered it all, or the run has ended
        if self._prepare(model_id):
            self._writer.write(model_id)
            self._pause_s = _FIRST_PAUSE_S

    def snapshot_all(self) -> None:
        """Snapshots of everything that changed, for a quick next start."""
        for model_id in self._cache.model_ids():
            self.snapshot(model_id)

    def evict(self, model_id: str) -> None:
        """Frees the adapter's memory after a snapshot; it is rebuilt when it is needed."""
        self.snapshot(model_id)
        self._cache.unload(model_id)

    def _start(self, model_id: str) -> None:
        if self._prepare(model_id):
            self._writer.start(model_id)

    def _finish(self) -> None:
        self._writer.finish_snapshot()
        self._pause_s = _FIRST_PAUSE_S

    def _prepare(self, model_id: str) -> bool:
        """Whether a snapshot can be taken: its samplers are on disk, and its run has not ended."""
        self._sampler_writer.wait_for(model_id)
        if self._cache[model_id].lacks_sampler and self._has_ended(model_id):
            self._writer.drop(model_id)
            return False
        self._recovery.write_samplers(model_id)
        return True

    def _has_ended(self, model_id: str) -> bool:
        model = self._db.read(models.get_any, model_id)
        return model is None or model.state == "ended"

    def _due(self, *, early: bool) -> str | None:
        """The adapter whose snapshot is due most, if any is; `early` is before it is late."""
        changed = self._cache.dirty()
        if not changed:
            return None
        most = max(changed, key=lambda each: changed[each].dirty_operations)
        max_operations = self._policy.after_operations * (1 if early else _LATE)
        if changed[most].dirty_operations >= max_operations:
            return most
        saving_s = sum(held.saving_s for held in changed.values())
        after_s = self._policy.after_s * (_EARLY if early else 1.0)
        if sum(held.dirty_s for held in changed.values()) < max(after_s, _SAVING_FACTOR * saving_s):
            return None
        return max(changed, key=lambda each: changed[each].dirty_s)

    def _evict_over_limit(self) -> None:
        while self._cache.is_over_limit and self._evict_one():
            pass

    def _evict_one(self) -> bool:
        """Evicts the least recently used adapter; whether there was one."""
        model_id = self._cache.evictable()
        if model_id is not None:
            self.evict(model_id)
        return model_id is not None
