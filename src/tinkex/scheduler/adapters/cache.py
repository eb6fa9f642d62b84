"""Which adapters the engine holds, and how one comes back that it does not hold.

An adapter is rebuilt from its last snapshot (weights, moments, pending gradients) and a replay of
the operations logged after it. The same path serves a restart of the server, the death of the
engine, and adapters that were set aside to make room.

Snapshots are due when replaying everything would take long, so the time is counted over all
adapters; those with most to replay go first, one at a time, and are written while work goes on, so
that nobody waits for the disk; only when the time itself is reached does work wait for them. Before
one is taken, every ephemeral sampler saved so far is on disk, so none is lost with it. While the
disk fails none can be taken: work goes on, there is more to replay, and they are tried again.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import NamedTuple

import msgspec

from tinkex import crashpoints
from tinkex.engine.interface import EngineFailure, EngineUserError, LoraSpec, RequestError
from tinkex.files.errors import StorageError
from tinkex.files.os_errors import damaged
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.adapters.snapshot_task import NotWrittenError, SnapshotTask
from tinkex.scheduler.convert import optim_request, train_request
from tinkex.scheduler.operation_bodies import BodyCache, SaveCommand
from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import Database, StoreError, models, operations, samplers
from tinkex.store.models import Model, Snapshot
from tinkex.store.operations import Operation
from tinkex.types.requests import OptimStepRequest

_logger = logging.getLogger(__name__)

_STATES = {
    "creating": "not made yet",
    "failed": "a model whose creation failed",
    "unloaded": "unloaded",
    "imported": "a copy without a model",
    "ended": "over, and its training state is no longer kept",
}


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When recovery snapshots are due: engine time over all adapters, operations of one."""

    after_s: float = 30.0
    after_operations: int = 500
    max_adapters: int = 64
    idle_s: float = 60.0  # how long an adapter nobody uses stays in memory


class _Held(msgspec.Struct):
    seq_id: int  # the last operation the adapter in memory has seen
    dirty_s: float = 0.0
    dirty_operations: int = 0
    used_at: float = msgspec.field(default_factory=time.monotonic)
    saving_s: float = 0.0  # how long its last snapshot took
    lacks_sampler: bool = False  # one could not be written; a replay writes it


class _Underway(msgspec.Struct):
    """A snapshot being taken, and what of the adapter's work it will cover."""

    task: SnapshotTask
    held: _Held
    dirty_s: float
    dirty_operations: int


class _Sampler(NamedTuple):
    """An ephemeral sampler on its way to the disk."""

    model_id: str
    written: Future[int]


_EARLY = 0.8  # the share of the time at which snapshots begin, one by one
_LATE = 2  # times the operations at which one adapter's snapshot no longer waits
_SAVING_FACTOR = 2.0  # work between snapshots is at least so many times what saving all takes
_MOST_SAMPLERS = 2
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class AdapterCache:
    """The adapters in the engine's memory. Used by the driver's thread only."""

    def __init__(
        self,
        supervisor: Supervisor,
        db: Database,
        bodies: BodyCache,
        folders: DataFolders,
        policy: SnapshotPolicy,
        evictor: Evictor,
    ) -> None:
        self._supervisor = supervisor
        self._db = db
        self._bodies = bodies
        self._folders = folders
        self._policy = policy
        self._evictor = evictor
        self.busy: set[str] = set()  # adapters of the running batch, which stay
        evictor.register(self._evict_one)
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._generation = 0
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until = 0.0  # after the disk failed
        self._unrecorded: dict[str, list[str]] = {}  # folders whose rows may or may not be there
        self._underway: _Underway | None = None
        self._samplers: list[_Sampler] = []
        self._cleanup = SnapshotCleanup(db, folders)
        self.is_behind = False  # whether more snapshots are due than were taken

    @property
    def has_news(self) -> bool:
        """Whether a snapshot taken beside the work has come to its end."""
        return self._underway is not None and self._underway.task.kept.done()

    def close(self) -> None:
        """Returns when no folder is left to be removed."""
        self._cleanup.close()

    def ensure(self, model_id: str) -> None:
        """Returns when the engine holds the adapter as its last finished operation left it."""
        self._notice_new_engine()
        if model_id in self._held:
            self._held.move_to_end(model_id)
            self.touch(model_id)
            return
        self._rebuild(model_id)

    def register(self, model_id: str, seq_id: int) -> None:
        """Notes an adapter that an operation just created or replaced."""
        self._notice_new_engine()
        self._held[model_id] = _Held(seq_id=seq_id)

    def drop(self, model_id: str) -> None:
        """Lets the adapter leave the engine without keeping its state."""
        self.await_snapshot(model_id)
        self._await_samplers(model_id)
        self._held.pop(model_id, None)
        self._supervisor.engine.unload_adapter(model_id)

    def record_applied(self, operation: Operation, seconds: float) -> None:
        """Notes that the adapter has seen the operation."""
        held = self._held.get(operation.model_id)
        if held is not None:
            held.seq_id = max(held.seq_id, operation.seq_id)
            if operation.kind in operations.REPLAYED:
                held.dirty_s += seconds
                held.dirty_operations += 1
            held.used_at = time.monotonic()

    def touch(self, model_id: str) -> None:
        """Has the adapter stay for a while, as if it had just been used."""
        if model_id in self._held:
            self._held[model_id].used_at = time.monotonic()

    def idle(self) -> str | None:
        """An adapter that nobody used for long enough to be set aside, if there is one."""
        before = time.monotonic() - self._policy.idle_s
        return next((name for name, held in self._held.items() if held.used_at < before), None)

    def maintain_snapshots(self) -> None:
        """Has one snapshot begin that is due, waits for those that are late, and makes room."""
        self._notice_new_engine()
        self.is_behind = False
        try:
            if self.has_news:
                self._finish_snapshot()
            if time.monotonic() < self._paused_until:
                return
            if self._underway is None and (due := self._due(early=True)) is not None:
                self._underway = self._begin(due, beside=True)
            while (late := self._due(early=False)) is not None:
                if self._underway is not None:
                    self._finish_snapshot()
                else:
                    self.snapshot(late)
            self.is_behind = self._underway is None and self._due(early=True) is not None
            self._evict_over_limit()
        except (NotWrittenError, StorageError, StoreError) as error:
            _logger.error("No snapshot can be kept; again in %g s: %s", self._pause_s, error)
            self._paused_until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def snapshot(self, model_id: str) -> None:
        """Makes the adapter's present state the one recovery begins with, before it returns."""
        self.await_snapshot(model_id)
        if not self._is_dirty(model_id):
            return  # the one under way covered it all, or the run is over
        underway = self._begin(model_id, beside=False)
        if underway is not None:
            self._end(underway)

    def await_snapshot(self, model_id: str) -> None:
        """Returns when no snapshot of the adapter is under way; one that failed stays due."""
        if self._underway is not None and self._underway.task.model_id == model_id:
            try:
                self._finish_snapshot()
            except (NotWrittenError, StoreError) as error:
                _logger.error("A snapshot was not kept: %s", error)

    def _begin(self, model_id: str, *, beside: bool) -> _Underway | None:
        """A snapshot of the present state; None if nobody needs it."""
        self._await_samplers(model_id)
        if self._held[model_id].lacks_sampler and self._is_over(model_id):
            self.drop(model_id)
            return None
        self.write_samplers(model_id)
        held, folder = self._held[model_id], self._folders.new_id()
        path, engine = self._folders.snapshot(folder), self._supervisor.engine
        began = time.monotonic()
        if beside:
            written = engine.start_saving(model_id, path, "all")
        else:
            written = Future()
            written.set_result(engine.save_adapter(model_id, path, "all"))
        self._unrecorded.setdefault(model_id, []).append(folder)
        task = SnapshotTask(self._db, model_id, held.seq_id, folder, written, began)
        return _Underway(task, held, held.dirty_s, held.dirty_operations)

    def _finish_snapshot(self) -> None:
        """Takes note of the end of the snapshot that is under way, after it if need be."""
        underway, self._underway = self._underway, None
        assert underway is not None
        self._end(underway)

    def _end(self, underway: _Underway) -> None:
        task, held = underway.task, underway.held
        model_id = task.model_id
        try:
            before = task.kept.result()
        except NotWrittenError:  # an engine that died may have left it all the same
            self._unrecorded[model_id].remove(task.folder)
            self._folders.remove(self._folders.snapshot(task.folder))
            raise
        self._pause_s = _FIRST_PAUSE_S
        folders = self._unrecorded.pop(model_id)
        if before is None:
            self.drop(model_id)
        else:
            crashpoints.passing("snapshot.kept")
            folders.remove(task.folder)
            if before.folder is not None:
                folders.append(before.folder)
        held.saving_s = task.took_s
        held.dirty_s = max(0.0, held.dirty_s - underway.dirty_s)
        held.dirty_operations -= underway.dirty_operations
        self._cleanup.start(model_id, task.seq_id, folders)

    def _is_dirty(self, model_id: str) -> bool:
        return model_id in self._held and self._held[model_id].dirty_operations > 0

    def _is_over(self, model_id: str) -> bool:
        model = self._db.read(models.get_any, model_id)
        return model is None or model.state == "ended"

    def write_snapshot(self, model_id: str) -> Snapshot:
        """The adapter's present state on disk; no row speaks of it yet."""
        folder = self._folders.new_id()
        path, engine = self._folders.snapshot(folder), self._supervisor.engine
        size_bytes = engine.save_adapter(model_id, path, "all")
        crashpoints.passing("snapshot.whole")
        return Snapshot(folder=folder, size_bytes=size_bytes)

    def snapshot_kept(self, before: Model) -> None:
        """Lets go of the snapshot the model had before a newer one was kept."""
        crashpoints.passing("snapshot.kept")
        held = self._held[before.model_id]
        held.dirty_s, held.dirty_operations = 0.0, 0
        old_folders = [] if before.snapshot_folder is None else [before.snapshot_folder]
        self._cleanup.start(before.model_id, held.seq_id, old_folders)

    def evict(self, model_id: str) -> None:
        """Frees the adapter's memory; it comes back when it is needed."""
        self.snapshot(model_id)
        self._held.pop(model_id, None)  # a snapshot of a run that is over drops it
        self._supervisor.engine.unload_adapter(model_id)

    def snapshot_all(self) -> None:
        """Snapshots of everything that changed, for a quick next start."""
        self._notice_new_engine()
        for model_id in list(self._held):
            self.snapshot(model_id)

    def sampler_not_written(self, model_id: str, error: BaseException) -> None:
        """Notes that an ephemeral sampler is in the engine's memory only."""
        _logger.error("A sampler could not be written; it will be: %s", error)
        self._held[model_id].lacks_sampler = True

    def start_sampler(self, model_id: str, folder: Path) -> Future[int]:
        """The size of the adapter's weights, as they are now, when they are on disk."""
        if len(self._samplers) >= _MOST_SAMPLERS:  # each holds a copy of its weights
            wait([each.written for each in self._samplers], return_when=FIRST_COMPLETED)
        for each in [each for each in self._samplers if each.written.done()]:
            self._finish_sampler(each)
        written = self._supervisor.engine.start_saving(model_id, folder, "weights")
        self._samplers.append(_Sampler(model_id, written))
        return written

    def _finish_sampler(self, sampler: _Sampler) -> None:
        """Takes note of how the writing of an ephemeral sampler ended, after it if need be."""
        self._samplers.remove(sampler)
        error = sampler.written.exception()
        if error is not None and sampler.model_id in self._held:  # else its replay writes it
            self.sampler_not_written(sampler.model_id, error)

    def _await_samplers(self, model_id: str) -> None:
        for each in [each for each in self._samplers if each.model_id == model_id]:
            self._finish_sampler(each)

    def write_samplers(self, model_id: str) -> None:
        """Returns when every ephemeral sampler of the model is on disk.

        Raises:
            StorageError: the disk does not take them.
        """
        if model_id not in self._held:
            self.ensure(model_id)
        self._await_samplers(model_id)
        if self._held[model_id].lacks_sampler:
            self._rebuild(model_id)  # a replay passes the moments they were taken at
        if self._held[model_id].lacks_sampler:
            raise StorageError("The disk does not take a sampler.", code="disk-failed")

    def holds(self, model_id: str) -> bool:
        """Whether the engine has the adapter now."""
        self._notice_new_engine()
        return model_id in self._held

    def _due(self, *, early: bool) -> str | None:
        """The adapter whose snapshot is due most, if any is; `early` is before it is late."""
        changed = {each: held for each, held in self._held.items() if held.dirty_operations}
        if not changed:
            return None
        most = max(changed, key=lambda each: changed[each].dirty_operations)
        most_operations = self._policy.after_operations * (1 if early else _LATE)
        if changed[most].dirty_operations >= most_operations:
            return most
        saving_s = sum(held.saving_s for held in changed.values())
        after_s = self._policy.after_s * (_EARLY if early else 1.0)
        if sum(held.dirty_s for held in changed.values()) < max(after_s, _SAVING_FACTOR * saving_s):
            return None
        return max(changed, key=lambda each: changed[each].dirty_s)

    def _evict_over_limit(self) -> None:
        for model_id in list(self._held):
            if len(self._held) <= self._policy.max_adapters:
                break
            if model_id not in self.busy:
                self.evict(model_id)

    def _evict_one(self) -> bool:
        """Sets aside the adapter that was idle for longest, if there is one."""
        idle = next((each for each in self._held if each not in self.busy), None)
        if idle is not None:
            self.evict(idle)
        return idle is not None

    def _notice_new_engine(self) -> None:
        engine = self._supervisor.engine
        assert engine is not None
        if self._generation != self._supervisor.generation:
            if self._underway is not None:
                self.await_snapshot(self._underway.task.model_id)
            self._held.clear()
            self._samplers.clear()  # what they lack is written when their models come back
            self._folders.remove_unfinished()
            self._generation = self._supervisor.generation

    def _rebuild(self, model_id: str) -> None:
        self.await_snapshot(model_id)  # once its row is kept, bodies go that are read below
        model = self._db.read(models.get_any, model_id)
        if model is None:
            raise EngineFailure(f"The model {model_id} is not in the store.", code="lost-model")
        if model.state != "ready":
            raise EngineUserError(
                f"The model {model_id} is not there: it is {_STATES[model.state]}.",
                code="model-not-ready",
                field="model_id",
                value=model_id,
            )
        engine = self._supervisor.engine
        engine.unload_adapter(model_id)
        self._held.pop(model_id, None)  # till all is replayed the engine has nobody's state
        if model.snapshot_folder is not None and model.snapshot_seq is not None:
            folder = self._folders.snapshot(model.snapshot_folder)
            if not folder.exists():
                raise damaged(f"the run {model_id}", folder.name, "its snapshot is missing")
            self._evictor.load_with_eviction(
                lambda: engine.load_adapter(model_id, model.engine_model, folder, "all")
            )
            start = model.snapshot_seq
        else:
            spec = msgspec.json.decode(model.spec, type=LoraSpec)
            self._evictor.load_with_eviction(
                lambda: engine.create_adapter(model_id, model.engine_model, spec)
            )
            start = 0
        todo = self._db.read(operations.to_replay, model_id, start)
        if todo:
            _logger.info("Replaying %d operations of %s.", len(todo), model_id)
        self._held[model_id] = _Held(seq_id=start)
        crashpoints.passing("replay.begun")
        try:
            for operation in todo:
                began = time.monotonic()
                self._replay(operation)
                self.record_applied(operation, time.monotonic() - began)
                crashpoints.passing("replay.step")
        except BaseException:
            self._held.pop(model_id, None)  # half replayed, it is nobody's state
            raise

    def _replay(self, operation: Operation) -> None:
        engine = self._supervisor.engine
        if operation.kind == "forward_backward":
            request = train_request(self._bodies.training(operation.request_id))
            _require(engine.forward_backward([request])[0], operation)
        elif operation.kind == "optim_step":
            step = self._bodies.command(operation.request_id, OptimStepRequest)
            _require(
                engine.optim_step([optim_request(operation.model_id, step.params)])[0], operation
            )
        elif operation.kind == "save_sampler":
            self._replay_sampler(operation)

    def _replay_sampler(self, operation: Operation) -> None:
        command = self._bodies.command(operation.request_id, SaveCommand)
        if command.sampling_session_id is None:
            return
        sampler = self._db.read(samplers.get, operation.owner, command.sampling_session_id)
        if sampler is None or sampler.freed_at is not None or sampler.folder is None:
            return
        folder = self._folders.sampler(sampler.folder)
        if not folder.exists():
            engine = self._supervisor.engine
            try:
                size_bytes = engine.save_adapter(operation.model_id, folder, "weights")
            except StorageError as error:
                self.sampler_not_written(operation.model_id, error)
                return
            self._db.submit(samplers.record_size, sampler.sampling_session_id, size_bytes)


def _require(result: object, operation: Operation) -> None:
    if isinstance(result, RequestError):
        raise EngineFailure(
            f"Replaying {operation.kind} {operation.seq_id} of {operation.model_id} gave an "
            f"error it did not give before: {result.message}",
            code="replay-failed",
        )
