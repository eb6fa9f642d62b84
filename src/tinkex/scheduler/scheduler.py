"""The scheduler as the server sees it: takes work in the log, publishes results that are stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tinkex import crashpoints
from tinkex.engine.interface import Engine, EngineUserError, ModelInfo
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.known_folders import KNOWN_FOLDERS
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.busiest_time import BusiestTime
from tinkex.scheduler.config import SchedulerConfig
from tinkex.scheduler.operation_bodies import BodyCache
from tinkex.scheduler.operation_cancelling import OperationCancelling
from tinkex.scheduler.placement import Placement
from tinkex.scheduler.queue_counts import QueueCounts, count_queues
from tinkex.scheduler.queues.arrivals import Arrival, Arrivals
from tinkex.scheduler.queues.missing_numbers import MissingNumbers
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import Activity, BatchLimits, Planner
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.outcomes import Announce, Publish
from tinkex.scheduler.running.publishing import CountedPublish
from tinkex.scheduler.running.sample_result_writer import SampleResultWriter
from tinkex.scheduler.running.sample_streams import SampleStreams
from tinkex.scheduler.running.series_keeper import SeriesKeeper
from tinkex.scheduler.sample_cancelling import SampleCancelling
from tinkex.scheduler.shared import SharedParts
from tinkex.scheduler.slot import EngineSlot
from tinkex.scheduler.slot_load import SlotLoad
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.scheduler.supervisor import EngineState, StateName
from tinkex.scheduler.work_counters import WorkCounters
from tinkex.scheduler.workers import Workers
from tinkex.store import Database, models, operations, samplers, samples
from tinkex.store.disk_quota import DiskQuota
from tinkex.store.operations import Operation
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import Sample
from tinkex.store.session_retention import Left
from tinkex.types.requests import SampleRequest

_STATE_ORDER: tuple[StateName, ...] = ("starting", "restarting", "not_responding", "ready")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What is ready to run now, and totals since the start."""

    num_ready: int
    num_finished: int
    busy_seconds: float  # of the busiest engine; falls when a single engine is replaced


class Scheduler:
    """Runs logged operations and samples on engines, one thread for each engine.

    `engine_factories`: one for each engine slot; called again whenever the slot's engine is lost.
    All engines are expected to hold the same base models. The last `num_remote` slots wait for
    workers from elsewhere, which may never come.
    """

    def __init__(
        self,
        db: Database,
        folders: DataFolders,
        engine_factories: Sequence[Callable[[], Engine]],
        config: SchedulerConfig,
        publish: Publish,
        *,
        announce: Announce,
        num_remote: int = 0,
    ) -> None:
        self._db = db
        self._announce = announce
        self._num_remote = num_remote
        self.folders = folders
        self.disk_quota = DiskQuota(folders.root, config.max_disk_bytes_per_owner)
        self._closing = threading.Event()
        self._busiest = BusiestTime()
        self._publish = CountedPublish(publish)
        self.counters = WorkCounters()
        self._bodies = BodyCache(db)
        self._wakeup = SlotWakeups(len(engine_factories))
        self._planner = Planner(
            BatchLimits(
                max_tokens=config.max_batch_tokens,
                max_operations=1 if config.is_deterministic else config.max_batch_operations,
            )
        )
        self._arrivals = Arrivals(self._planner, self._wakeup)
        self._sample_queue = SampleQueue(
            max_running=1 if config.is_deterministic else config.max_running_samples,
            num_slots=len(engine_factories),
        )
        self._placement = Placement(
            [SlotLoad() for _ in engine_factories], max_models=config.max_adapters
        )
        self.streams = SampleStreams(lambda keys: publish({}, keys))
        self._sample_writer = SampleResultWriter(
            db, self._publish, self.streams, self._closing.is_set, self.counters
        )
        self._cleanup = SnapshotCleanup(db, self.folders)
        shared = SharedParts(
            config=config,
            db=db,
            bodies=self._bodies,
            folders=self.folders,
            disk_quota=self.disk_quota,
            planner=self._planner,
            sample_queue=self._sample_queue,
            missing_numbers=MissingNumbers(db, self._planner, config.hole_grace_s),
            placement=self._placement,
            publish=self._publish,
            announce=announce,
            series=SeriesKeeper(db),
            sample_writer=self._sample_writer,
            streams=self.streams,
            cleanup=self._cleanup,
            counters=self.counters,
            wakeup=self._wakeup,
        )
        self._slots = [
            EngineSlot(slot_id, factory, shared) for slot_id, factory in enumerate(engine_factories)
        ]
        self.operation_cancelling = OperationCancelling(
            db, self._planner, self._wakeup, self._publish, self.counters
        )
        self.sample_cancelling = SampleCancelling(
            db, self._sample_queue, self._slots, self._publish, self.streams, self.counters
        )
        self.workers = Workers(self._slots, shared, num_remote=num_remote)

    def start(self) -> None:
        """Queues what an earlier run left unfinished, and starts the engines."""
        crashpoints.passing("start.before")
        self._remove_leftovers()
        crashpoints.passing("start.swept")
        positions = self._db.read(operations.positions)
        now = time.monotonic()
        for operation in self._db.read(operations.queued):
            if self._planner.queue(operation.model_id) is None:
                start, refused = positions.get(operation.model_id, (0, set()))
                self._open(operation.model_id, start, refused)
            self._planner.add(operation, now)
        for sample in self._db.read(samples.queued):
            self._sample_queue.add(QueuedSample(sample=sample))
        self._sample_writer.start()
        for slot in self._slots:
            slot.driver.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends after the running batches, or without them; what is unfinished stays in the log."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for slot in self._slots:
            slot.driver.request_stop()
        for slot in self._slots:
            slot.driver.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._closing.set()
        for slot in self._slots:
            slot.driver.join()
        self._cleanup.close()
        self._sample_writer.close()

    def is_ready(self) -> bool:
        """Whether an engine has started, so that work can run."""
        return any(slot.driver.is_ready.is_set() for slot in self._slots)

    def are_all_ready(self) -> bool:
        """Whether every engine has started."""
        return all(slot.driver.is_ready.is_set() for slot in self._slots)

    def engine_states(self) -> list[EngineState]:
        """The state of each worker's engine; slots that wait for a worker have none."""
        local = len(self._slots) - self._num_remote
        return [
            slot.supervisor.state()
            for number, slot in enumerate(self._slots)
            if number < local or slot.supervisor.current is not None
        ]

    def engine_state(self) -> EngineState:
        """The state of the engine that is furthest from being ready. Slots that wait for a worker
        from elsewhere count only if there is no engine at all."""
        states = self.engine_states() or [slot.supervisor.state() for slot in self._slots]
        return min(states, key=lambda each: _STATE_ORDER.index(each.state))

    def fatal(self) -> EngineUserError | None:
        """Why an engine can never start, if that is so."""
        return next((s.driver.fatal for s in self._slots if s.driver.fatal is not None), None)

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether every engine started within the time."""
        deadline = time.monotonic() + timeout_s
        return all(
            slot.driver.is_ready.wait(max(0.0, deadline - time.monotonic())) for slot in self._slots
        )

    def models(self) -> list[ModelInfo]:
        """The base models, once an engine has started."""
        return next((found for s in self._slots if (found := s.supervisor.models())), [])

    def knows(self, model_id: str) -> bool:
        """Whether the model's queue is open, so that scheduling needs no read of the store."""
        return self._planner.queue(model_id) is not None

    def has(self, operation: Operation) -> bool:
        """Whether the operation waits here, or was taken to run."""
        queue = self._planner.queue(operation.model_id)
        return queue is not None and queue.has(operation.seq_id)

    def next_number(self, model_id: str) -> int | None:
        """The number of the model's next operation; None if its queue is not open."""
        queue = self._planner.queue(model_id)
        return None if queue is None else queue.next_seq

    def has_sample(self, request_id: str) -> bool:
        """Whether the sampling request waits or runs here."""
        return self._sample_queue.has(request_id)

    def enqueue(self, operation: Operation, request: object | None = None, size: int = 0) -> None:
        """Schedules an operation that was just appended to the log."""
        if request is not None:
            self._bodies.remember(operation.request_id, request, size)
        if self._planner.queue(operation.model_id) is None:
            positions = self._db.read(operations.positions, operation.model_id)
            self._open(operation.model_id, *positions.get(operation.model_id, (0, set())))
        with self._wakeup:
            self._planner.add(operation, time.monotonic())
            self._wake_for(operation.model_id)
        self._announce([operation], "queued")

    def arrival(self, owner: str) -> Arrival:
        """A request of the owner that is being received; its body names the model later."""
        return Arrival(self._arrivals, owner)

    def consume(self, model_id: str, seq_id: int) -> None:
        """Passes over a number whose request was refused."""
        with self._wakeup:
            queue = self._planner.queue(model_id)
            if queue is not None:
                self._planner.consume(queue, seq_id)
                self._wake_for(model_id)

    def enqueue_sample(self, sample: Sample, request: SampleRequest) -> None:
        """Schedules a sampling request that was just stored."""
        self._sample_queue.add(QueuedSample(sample=sample, request=request))
        takers = self._sample_queue.have_loaded(sample.sampling_session_id)
        with self._wakeup:
            self._planner.note_sample(sample.owner, time.monotonic())
            for slot_id in takers:
                self._wakeup.notify(slot_id)
            if not takers:
                self._wakeup.notify_all()

    def sampling_sessions_in_use(self) -> set[str]:
        """The sampling sessions that have unfinished requests."""
        return self._sample_queue.sampling_sessions()

    def sampling_session_of(self, owner: str, request_id: str) -> str | None:
        """The sampling session of the owner's sampling request, if that waits or runs."""
        return self._sample_queue.sampling_session_of(owner, request_id)

    def pending_operations(self, owner: str) -> int:
        """How many of the owner's operations wait."""
        with self._wakeup:
            return self._planner.pending(owner)

    def progress(self) -> Progress:
        """What is ready to run, and totals since the start."""
        with self._wakeup:
            num_ready = self._planner.num_ready()
        busy = [slot.supervisor.busy_seconds() for slot in self._slots]
        return Progress(
            num_ready=num_ready + self._sample_queue.total(),
            num_finished=self._publish.num_finished,
            busy_seconds=self._busiest.update(busy),
        )

    def activities(self, model_ids: Iterable[str]) -> dict[str, Activity]:
        """What becomes of the operations of those of these models that have an open queue."""
        with self._wakeup:
            found = {model_id: self._planner.activity(model_id) for model_id in model_ids}
        return {model_id: each for model_id, each in found.items() if each is not None}

    def queue_counts(self) -> QueueCounts:
        """What waits and runs now, of all tenants."""
        return count_queues(self._planner, self._sample_queue, self._wakeup)

    def tenants_waiting(self) -> int:
        """How many tenants have operations that wait."""
        with self._wakeup:
            return len(self._planner.owners())

    def is_sample_waiting(self, owner: str, request_id: str) -> bool:
        """Whether the owner's sampling request has not been given to the engine yet."""
        return self._sample_queue.is_waiting(owner, request_id)

    def is_session_waiting(self, owner: str, sampling_session_id: str, for_s: float) -> bool:
        """Whether a request of the owner's sampling session has waited this long for an engine."""
        return self._sample_queue.is_session_waiting(owner, sampling_session_id, for_s)

    def pending_samples(self, owner: str | None = None) -> int:
        """How many sampling requests are unfinished, of one owner or of all."""
        return self._sample_queue.total() if owner is None else self._sample_queue.pending(owner)

    def free_session(self, session_id: str) -> None:
        """Frees what a session that has ended holds: its samplers for good, its adapters from
        memory."""
        freed = self._db.write_freeing(samplers.free_session, session_id)
        self._free(sampler_ids=[], model_ids=self._db.read(models.of_session, session_id))
        crashpoints.passing("session.freed")
        self.forget_samplers(freed)

    def sweep_depot(self) -> None:
        """Deletes folders in the depot that a crash left without a row."""
        for kind, known in KNOWN_FOLDERS.items():
            self.folders.sweep(kind, self._db.read(known))

    def uses_sampler(self, sampling_session_id: str) -> bool:
        """Whether an unfinished request needs the sampler."""
        return self._sample_queue.uses(sampling_session_id)

    def forget_samplers(self, freed: list[SamplerRecord]) -> None:
        """Unloads ephemeral samplers that are freed in the store, and removes their folders."""
        self._free(sampler_ids=[each.sampling_session_id for each in freed], model_ids=[])
        for sampler in freed:
            if sampler.folder is not None:
                self.folders.remove(self.folders.sampler(sampler.folder))

    def forget_session(self, left: Left) -> None:
        """Unloads and removes everything of a session whose rows are deleted."""
        self._free(sampler_ids=left.sampling_session_ids, model_ids=[])
        for slot in self._slots:
            slot.driver.forget(left.model_ids)
        for folder in left.sampler_folders:
            self.folders.remove(self.folders.sampler(folder))
        for folder in left.snapshot_folders:
            self.folders.remove(self.folders.snapshot(folder))

    def _wake_for(self, model_id: str) -> None:
        """Wakes the model's slot, or all if none has it. Called with the lock held."""
        slot_id = self._placement.slot_of(model_id)
        if slot_id is None:
            self._wakeup.notify_all()
        else:
            self._wakeup.notify(slot_id)

    def _free(self, *, sampler_ids: list[str], model_ids: list[str]) -> None:
        for slot in self._slots:
            slot.driver.free(sampler_ids=sampler_ids, model_ids=model_ids)

    def _open(self, model_id: str, start: int, refused: set[int]) -> None:
        model = self._db.read(models.get_any, model_id)
        assert model is not None, "an operation's model is in the store"
        queue = ModelQueue(
            model_id, model.owner, model.engine_model, next_seq=start, refused=refused
        )
        with self._wakeup:
            self._arrivals.apply_to(self._planner.open(queue))

    def _remove_leftovers(self) -> None:
        """Removes folders that a crash left without a row, or with one of an ended session."""
        # Folders are listed before their rows are read: if this server is stopped (SIGSTOP) in
        # between and another leads meanwhile, the folders which that one adds are not removed.
        paths = {kind: self.folders.paths(kind) for kind in KNOWN_FOLDERS}
        self._db.write(samplers.free_of_ended_sessions)
        for kind, known in KNOWN_FOLDERS.items():
            self.folders.take_up(paths[kind], self._db.read(known))
