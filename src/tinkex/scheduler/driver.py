"""The thread of one engine slot: shares the engine's time between training and sampling.

Training operations run in batches, sampling in short slices. While both have work each gets half
of the engine's time (see `time_shares`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from tinkex.engine.interface import EngineError, EngineFailure, EngineUserError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.batch_runner import BatchRunner
from tinkex.scheduler.model_moves import ModelMoves
from tinkex.scheduler.queues.time_shares import TimeShares, WorkKind
from tinkex.scheduler.running.sample_preparation import SamplePreparation
from tinkex.scheduler.running.sampling_executor import SamplingExecutor
from tinkex.scheduler.shared import SharedParts
from tinkex.store import StoreError

__all__ = ["Driver"]

_logger = logging.getLogger(__name__)

_SAMPLING_S = 0.05
_SHORT_SAMPLING_S = 0.015
"""How long a slice of sampling takes while several tenants send work: a request that comes during
one waits for its end."""
_TICK_S = 0.25


class Driver:
    """Runs what the shared queues hold for one slot, until stopped."""

    def __init__(
        self,
        slot_id: int,
        shared: SharedParts,
        adapters: EngineAdapters,
        batches: BatchRunner,
        preparation: SamplePreparation,
        sampling: SamplingExecutor,
        moves: ModelMoves,
    ) -> None:
        self._slot_id = slot_id
        self._shared = shared
        self._wakeup = shared.wakeup
        self._supervisor = adapters.supervisor
        self._adapters = adapters
        self._snapshots = adapters.snapshots
        self._batches = batches
        self._preparation = preparation
        self._sampling = sampling
        self._moves = moves
        self._load = shared.placement.loads[slot_id]
        self.is_ready = threading.Event()
        self.fatal: EngineUserError | None = None
        self._next_idle_check = 0.0
        self._deferred: list[Callable[[], None]] = []  # run between batches by this thread
        self._stopping = threading.Event()
        self._shares = TimeShares()
        self._thread = threading.Thread(
            target=self._run, name=f"tinkex-driver-{slot_id}", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Has the thread end after the running batch, with snapshots, and close its engine."""
        self._supervisor.stop_starting()  # it may wait for a worker that never comes
        with self._wakeup:
            self._stopping.set()
            self._wakeup.notify(self._slot_id)

    def join(self, timeout_s: float | None = None) -> None:
        """Returns when the thread has ended, or after the timeout has closed its engine.

        A batch that takes longer than the timeout runs again at the next start.
        """
        if not self._thread.is_alive():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _logger.warning("The running batch takes too long; it runs again at the next start.")
            self._supervisor.close()

    def free(self, *, sampler_ids: list[str], model_ids: list[str]) -> None:
        """Has samplers unloaded and adapters evicted between batches."""
        self._defer([partial(self._preparation.free, each) for each in sampler_ids])
        self._defer([partial(self._evict, each) for each in model_ids])

    def forget(self, model_ids: list[str]) -> None:
        """Has adapters dropped between batches, without keeping their state."""
        self._defer([partial(self._forget, each) for each in model_ids])

    def _defer(self, jobs: list[Callable[[], None]]) -> None:
        with self._wakeup:
            self._deferred += jobs
            self._wakeup.notify(self._slot_id)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._revive()
                self._supervisor.engine.models()
                self.is_ready.set()
                self._work()
            except EngineUserError as error:
                if not self.is_ready.is_set():
                    self.fatal = error  # the models are wrong: a retry would not help
                    return
                _logger.exception("The engine cannot be started again; retrying.")
                time.sleep(1.0)
            except Exception as error:
                if self._supervisor.is_closed:
                    return
                if isinstance(error, EngineFailure) and error.is_loss_of_engine:
                    self._supervisor.discard(error)
                    continue
                _logger.exception(
                    "Unexpected error in engine slot %d; retrying in 1 s.", self._slot_id
                )
                time.sleep(1.0)
        try:
            if self._supervisor.current is not None and not self._supervisor.is_closed:
                self._snapshots.snapshot_all()
        except Exception:
            _logger.exception("Snapshots at the end failed; the next start replays instead.")
        self._supervisor.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            with self._wakeup:
                while not self._has_work():
                    self._wakeup.wait(self._slot_id, _TICK_S)
                    self._shared.missing_numbers.skip()
                    if self._stopping.is_set():
                        return
                    self._shares.next(can_train=False, can_sample=False)
                    self._defer_idle()
                    self._moves.seek(time.monotonic(), is_idle=True)
                self._defer_idle()
                deferred, self._deferred = self._deferred, []
            self._run_deferred(deferred)
            if self._moves.has_moves:
                self._moves.move_out()
            self._run_once()

    def _revive(self) -> None:
        """Starts an engine if there is none. Meanwhile other slots may take this one's models."""
        if not self._supervisor.is_down:
            return
        with self._wakeup:
            self._load.in_use = ()
        try:
            self._supervisor.revive()
        finally:
            with self._wakeup:
                self._load.in_use = None
                self._wakeup.notify_all()

    def _run_deferred(self, jobs: list[Callable[[], None]]) -> None:
        """Runs them all; those that fail by the disk are left to later cleanups."""
        while jobs:
            try:
                jobs.pop(0)()
            except (StorageError, StoreError) as error:
                _logger.error("A deferred job failed: %s", error)
            except BaseException:
                with self._wakeup:
                    self._deferred = jobs + self._deferred
                raise

    def _has_work(self) -> bool:
        has_requests = self._batches.has_ready() or self._has_samples() or bool(self._deferred)
        has_other = self._snapshots.has_work or self._moves.has_moves
        return has_requests or has_other or self._supervisor.is_down

    def _has_samples(self) -> bool:
        return self._shared.sample_queue.has_work(self._slot_id)

    def _run_once(self) -> None:
        self._revive()
        with self._wakeup:
            self._shared.missing_numbers.skip()
            can_train = self._batches.has_ready()
            self._moves.seek(time.monotonic(), is_idle=False)
        kind = self._shares.next(can_train=can_train, can_sample=self._has_samples())
        if kind is not None:
            self._spend(kind, self._train if kind == "train" else self._sample)
        if can_train or self._snapshots.has_work:
            self._spend("train", self._snapshots.maintain_snapshots)

    def _spend(self, kind: WorkKind, work: Callable[[], None]) -> None:
        began, engine = time.monotonic(), self._supervisor.current
        self._load.begin(began)
        self._load.last_work = kind
        try:
            work()
        finally:
            now = time.monotonic()
            self._load.end(now)
            # Time lost with an engine that hung or died is charged to neither kind of work.
            if self._supervisor.current is engine:
                self._shares.spent(kind, now - began)

    def _train(self) -> None:
        self._batches.run_next(self._stopping)

    def _sample(self) -> None:
        began = time.monotonic()
        with self._wakeup:
            has_neighbours = self._shared.planner.has_several_owners(began)
        self._sampling.run_for(_SHORT_SAMPLING_S if has_neighbours else _SAMPLING_S)
        _logger.debug("A slice of sampling took %.4f s.", time.monotonic() - began)

    def _defer_idle(self) -> None:
        """Has one idle adapter and one idle sampler leave memory. Called with the lock held."""
        now = time.monotonic()
        if now < self._next_idle_check:
            return
        self._next_idle_check = now + _TICK_S
        adapter, sampler = self._adapters.cache.idle(), self._adapters.samplers.idle()
        if adapter is not None:
            self._deferred.append(partial(self._evict_idle, adapter))
        if sampler is not None:
            self._deferred.append(partial(self._preparation.free, sampler))

    def _evict_idle(self, model_id: str) -> None:
        """Evicts an idle adapter; if that fails it stays and is tried again later."""
        self._adapters.cache.touch(model_id)
        try:
            self._evict(model_id)
        except (EngineError, StorageError, StoreError) as error:
            if isinstance(error, EngineFailure) and error.is_loss_of_engine:
                raise
            _logger.warning("The idle adapter %s stays in memory: %s", model_id, error)

    def _evict(self, model_id: str) -> None:
        """Frees the adapter's memory unless work for it waits; it is rebuilt if it is needed."""
        with self._wakeup:
            queue = self._shared.planner.queue(model_id)
            is_busy = queue is not None and len(queue) > 0
        if is_busy:
            return
        if model_id in self._adapters.cache:
            self._snapshots.evict(model_id)
        self._release(model_id)

    def _release(self, model_id: str) -> None:
        """Lets any slot have the model, whose state has left this one's engine."""
        with self._wakeup:
            self._shared.placement.release(model_id, self._slot_id)
            self._wakeup.notify_all()  # an operation may have come for it meanwhile

    def _forget(self, model_id: str) -> None:
        with self._wakeup:
            self._shared.planner.close(model_id)
        if model_id in self._adapters.cache:
            self._adapters.snapshot_writer.drop(model_id)
        self._release(model_id)
