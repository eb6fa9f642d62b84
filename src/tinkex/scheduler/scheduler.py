"""The scheduler as the server sees it: hand in work that is already in the log, get told when
results are kept."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tinkex import crashpoints
from tinkex.engine.interface import Engine, EngineError, EngineUserError, ModelInfo
from tinkex.scheduler.adapters.checkpointing import Checkpointer
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.scheduler.config import SchedulerConfig
from tinkex.scheduler.driver import Driver
from tinkex.scheduler.operation_bodies import BodyCache
from tinkex.scheduler.queues.arrivals import Arrival, Arrivals
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import BatchLimits, Planner
from tinkex.scheduler.queues.sample_queue import QueuedSample, SampleQueue
from tinkex.scheduler.running.executor import Executor
from tinkex.scheduler.running.outcomes import Publish
from tinkex.scheduler.running.publishing import CountedPublish
from tinkex.scheduler.running.sample_preparation import SamplePreparation
from tinkex.scheduler.running.sample_result_writer import SampleResultWriter
from tinkex.scheduler.running.sampling_executor import SamplingExecutor
from tinkex.scheduler.supervisor import EngineState, Supervisor
from tinkex.store import Database, StoreError, checkpoints, models, operations, samplers, samples
from tinkex.store.disk_quota import DiskQuota
from tinkex.store.operations import Operation
from tinkex.store.results import error_result
from tinkex.store.samplers import Sampler
from tinkex.store.samples import Sample
from tinkex.store.session_retention import Left
from tinkex.types.requests import SampleRequest


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for its turn now, and totals since the start."""

    num_ready: int
    num_finished: int
    busy_seconds: float  # that the engine worked; smaller than before after a new one started


class Scheduler:
    """Runs logged operations and samples on an engine, from threads of its own."""

    def __init__(
        self,
        db: Database,
        data_dir: Path,
        engine_factory: Callable[[], Engine],
        config: SchedulerConfig,
        publish: Publish,
    ) -> None:
        self._db = db
        self._publish = CountedPublish(publish)
        self._closing = threading.Event()
        self.folders = DataFolders(data_dir)
        self.disk_quota = DiskQuota(data_dir, config.max_disk_bytes_per_owner)
        self._supervisor = Supervisor(engine_factory)
        self._bodies = BodyCache(db)
        self._planner = Planner(
            BatchLimits(
                max_tokens=config.max_batch_tokens,
                max_operations=1 if config.is_deterministic else config.max_batch_operations,
            )
        )
        self._sample_queue = SampleQueue(
            max_running=1 if config.is_deterministic else config.max_running_samples
        )
        self._cleanup = SnapshotCleanup(db, self.folders)
        self._sample_writer = SampleResultWriter(db, self._publish, self._closing.is_set)
        adapters = EngineAdapters(
            self._supervisor, db, self._bodies, self.folders, self._cleanup, config
        )
        checkpointer = Checkpointer(db, adapters, self.disk_quota)
        preparation = SamplePreparation(db, adapters)
        self._driver = Driver(
            db=db,
            planner=self._planner,
            sample_queue=self._sample_queue,
            adapters=adapters,
            executor=Executor(db, adapters, checkpointer, self._bodies, self._publish),
            preparation=preparation,
            sampling=SamplingExecutor(
                adapters, preparation, self._sample_queue, self._sample_writer
            ),
            missing_seq_grace_s=config.hole_grace_s,
        )
        self._arrivals = Arrivals(self._planner, self._driver.wakeup)

    def start(self) -> None:
        """Takes up what an earlier run left unfinished, and begins."""
        crashpoints.passing("start.before")
        self._sweep()
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
        self._driver.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends after the running batch, or without it; what is unfinished stays in the log."""
        self._driver.stop(timeout_s)
        self._closing.set()
        self._driver.join()
        self._cleanup.close()
        self._sample_writer.close()

    def is_ready(self) -> bool:
        """Whether the engine has started."""
        return self._driver.is_ready.is_set()

    def engine_state(self) -> EngineState:
        """What the engine does now, and since when."""
        return self._supervisor.state()

    def fatal(self) -> EngineUserError | None:
        """Why the engine can never start, if that is so."""
        return self._driver.fatal

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the engine started within the time."""
        return self._driver.is_ready.wait(timeout_s)

    def models(self) -> list[ModelInfo]:
        """The base models, once the engine has started."""
        return self._supervisor.models()

    def knows(self, model_id: str) -> bool:
        """Whether an operation of the model can be scheduled without a look into the store."""
        return self._planner.queue(model_id) is not None

    def has(self, operation: Operation) -> bool:
        """Whether the operation waits here, or its turn has come already."""
        queue = self._planner.queue(operation.model_id)
        return queue is not None and queue.has(operation.seq_id)

    def next_number(self, model_id: str) -> int | None:
        """The number of the model's operation whose turn it is, if no look into the store is
        needed to tell."""
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
        with self._driver.wakeup:
            self._planner.add(operation, time.monotonic())
            self._driver.wakeup.notify_all()

    def arrival(self, owner: str) -> Arrival:
        """A request of the owner that is coming in; it says itself for which model."""
        return Arrival(self._arrivals, owner)

    def consume(self, model_id: str, seq_id: int) -> None:
        """Passes over a number whose request was refused."""
        with self._driver.wakeup:
            queue = self._planner.queue(model_id)
            if queue is not None:
                queue.consume(seq_id)
                self._driver.wakeup.notify_all()

    def enqueue_sample(self, sample: Sample, request: SampleRequest) -> None:
        """Schedules a sampling request that was just kept."""
        self._sample_queue.add(QueuedSample(sample=sample, request=request))
        with self._driver.wakeup:
            self._planner.note_sample(sample.owner, time.monotonic())
            self._driver.wakeup.notify_all()

    def sampling_sessions_in_use(self) -> set[str]:
        """The sampling sessions that have unfinished requests."""
        return self._sample_queue.sampling_sessions()

    def sampling_session_of(self, owner: str, request_id: str) -> str | None:
        """The sampling session of the owner's sampling request, if that waits or runs."""
        return self._sample_queue.sampling_session_of(owner, request_id)

    def cancel_samples(self, sampling_session_ids: set[str], before: float, reason: str) -> int:
        """How many unfinished requests of these sampling sessions, that came before this time,
        were cancelled."""
        old = self._sample_queue.older_than(before, sampling_session_ids)
        return sum(self.cancel_sample(each.owner, each.request_id, reason) for each in old)

    def cancel_sample(
        self,
        owner: str,
        request_id: str,
        reason: str = "The request was cancelled by its client.",
    ) -> bool:
        """Whether the owner's request was still unfinished; it ends as cancelled."""
        waiting = self._sample_queue.cancel(request_id, owner)
        if waiting is None:
            return False
        engine = self._supervisor.current
        if engine is not None:
            with contextlib.suppress(EngineError):  # an engine that died has forgotten it anyway
                engine.cancel_sample(request_id)
        crashpoints.passing("sample.cancelled")
        result = error_result(reason, category="user", code="cancelled")
        try:
            self._db.write(samples.finish, [(waiting.sample, result)])
        except StoreError:
            self._sample_queue.add(waiting, first=True)  # nothing was kept, so it is not over
            raise
        self._publish({request_id: result}, {waiting.sample.sampling_session_id})
        return True

    def pending_operations(self, owner: str) -> int:
        """How many of the owner's operations wait."""
        with self._driver.wakeup:
            return self._planner.pending(owner)

    def progress(self) -> Progress:
        """How far the work has come."""
        with self._driver.wakeup:
            num_ready = self._planner.num_ready()
        return Progress(
            num_ready=num_ready + self._sample_queue.total(),
            num_finished=self._publish.num_finished,
            busy_seconds=self._supervisor.busy_seconds(),
        )

    def tenants_waiting(self) -> int:
        """How many tenants have operations that wait."""
        with self._driver.wakeup:
            return len(self._planner.owners())

    def is_sample_waiting(self, owner: str, request_id: str) -> bool:
        """Whether the owner's sampling request has not been given to the engine yet."""
        return self._sample_queue.is_waiting(owner, request_id)

    def pending_samples(self, owner: str | None = None) -> int:
        """How many sampling requests are unfinished, of one owner or of all."""
        return self._sample_queue.total() if owner is None else self._sample_queue.pending(owner)

    def free_session(self, session_id: str) -> None:
        """Frees what a session that has ended holds: its samplers for good, its adapters from
        memory."""
        freed = self._db.write_freeing(samplers.free_session, session_id)
        self._driver.free(sampler_ids=[], model_ids=self._db.read(models.of_session, session_id))
        crashpoints.passing("session.freed")
        self.forget_samplers(freed)

    def uses_sampler(self, sampling_session_id: str) -> bool:
        """Whether an unfinished request needs the sampler."""
        return self._sample_queue.uses(sampling_session_id)

    def forget_samplers(self, freed: list[Sampler]) -> None:
        """Lets go of ephemeral samplers whose rows say that nobody may use them any more."""
        self._driver.free(sampler_ids=[each.sampling_session_id for each in freed], model_ids=[])
        for sampler in freed:
            if sampler.folder is not None:
                self.folders.remove(self.folders.sampler(sampler.folder))

    def forget_session(self, left: Left) -> None:
        """Lets go of everything that a session left whose rows are gone."""
        self._driver.free(sampler_ids=left.sampling_session_ids, model_ids=[])
        self._driver.forget(left.model_ids)
        for folder in left.sampler_folders:
            self.folders.remove(self.folders.sampler(folder))
        for folder in left.snapshot_folders:
            self.folders.remove(self.folders.snapshot(folder))

    def _open(self, model_id: str, start: int, refused: set[int]) -> None:
        model = self._db.read(models.get_any, model_id)
        assert model is not None, "an operation's model is in the store"
        queue = ModelQueue(
            model_id, model.owner, model.engine_model, next_seq=start, refused=refused
        )
        with self._driver.wakeup:
            self._arrivals.apply_to(self._planner.open(queue))

    def _sweep(self) -> None:
        """Removes folders that a crash left without a row, or with one of an ended session."""
        self._db.write(samplers.free_of_ended_sessions)
        self.folders.remove_unknown("checkpoints", self._db.read(checkpoints.all_ids))
        self.folders.remove_unknown("snapshots", self._db.read(models.snapshot_folders))
        self.folders.remove_unknown("samplers", self._db.read(samplers.live_folders))
