"""The thread that drives the engine, and shares its time between training and sampling.

Training operations run in batches, sampling in short slices. While both have work each gets half
of the engine's time (see `time_shares`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from tinkex.engine.interface import EngineError, EngineFailure, EngineUserError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.queues.batch_wait import BatchWaitPolicy
from tinkex.scheduler.queues.cost_model import FORWARD_KINDS
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import Computed, Planner
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.time_shares import TimeShares, WorkKind
from tinkex.scheduler.running.executor import Executor
from tinkex.scheduler.running.sample_preparation import SamplePreparation
from tinkex.scheduler.running.sampling_executor import SamplingExecutor
from tinkex.store import Database, StoreError, operations
from tinkex.store.operations import Operation

_logger = logging.getLogger(__name__)

_SPELL_S = 0.05
_TICK_S = 0.25


class Driver:
    """Runs what the planner and the board hold, until stopped."""

    def __init__(
        self,
        *,
        db: Database,
        planner: Planner,
        sample_queue: SampleQueue,
        adapters: EngineAdapters,
        executor: Executor,
        preparation: SamplePreparation,
        sampling: SamplingExecutor,
        missing_seq_grace_s: float,
    ) -> None:
        self._db = db
        self._supervisor = adapters.supervisor
        self._planner = planner
        self._sample_queue = sample_queue
        self._executor = executor
        self._cache = adapters.cache
        self._adapters = adapters
        self._snapshots = adapters.snapshots
        self._preparation = preparation
        self._sampling = sampling
        self._missing_seq_grace_s = missing_seq_grace_s
        self.wakeup = threading.Condition()  # also guards the planner
        self.is_ready = threading.Event()
        self.fatal: EngineUserError | None = None
        self._look_at = 0.0  # when to look for idle things again
        self._deferred: list[Callable[[], None]] = []
        self._wait_policies: defaultdict[str, BatchWaitPolicy] = defaultdict(
            BatchWaitPolicy
        )  # by base
        self._stopping = threading.Event()
        self._shares = TimeShares()
        self._thread = threading.Thread(target=self._run, name="tinkex-driver", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Lets the running batch end, takes snapshots, and closes the engine.

        A batch that takes longer than the timeout is given up; it runs again at the next start.
        """
        with self.wakeup:
            self._stopping.set()
            self.wakeup.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _logger.warning("The running batch takes too long; it runs again at the next start.")
            self._supervisor.close()

    def join(self) -> None:
        """Returns when the thread has ended."""
        self._thread.join()

    def free(self, *, sampler_ids: list[str], model_ids: list[str]) -> None:
        """Has samplers forgotten and adapters set aside at the next turn."""
        with self.wakeup:
            self._deferred += [partial(self._preparation.free, each) for each in sampler_ids]
            self._deferred += [partial(self._evict, each) for each in model_ids]
            self.wakeup.notify_all()

    def forget(self, model_ids: list[str]) -> None:
        """Has adapters dropped whose state nobody needs any more, at the next turn."""
        with self.wakeup:
            self._deferred += [partial(self._forget, each) for each in model_ids]
            self.wakeup.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._supervisor.engine.models()
                self.is_ready.set()
                self._work()
            except EngineUserError as error:
                if not self.is_ready.is_set():
                    self.fatal = error  # the models are wrong: another try would not help
                    return
                _logger.exception("The engine cannot be started again; trying on.")
                time.sleep(1.0)
            except Exception as error:
                if self._supervisor.is_closed:
                    return
                if isinstance(error, EngineFailure) and error.is_loss_of_engine:
                    self._supervisor.discard(error)
                    continue
                _logger.exception("The driver met an error; it goes on in a second.")
                time.sleep(1.0)
        try:
            if self._supervisor.current is not None and not self._supervisor.is_closed:
                self._snapshots.snapshot_all()
        except Exception:
            _logger.exception("Snapshots at the end failed; the next start replays instead.")
        self._supervisor.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            with self.wakeup:
                while not self._has_work():
                    self.wakeup.wait(_TICK_S)
                    self._skip_missing()
                    if self._stopping.is_set():
                        return
                    self._shares.next(can_train=False, can_sample=False)
                    self._note_idle()
                self._note_idle()
                deferred, self._deferred = self._deferred, []
            self._run_deferred(deferred)
            self._run_once()

    def _run_deferred(self, deferred: list[Callable[[], None]]) -> None:
        """Runs them all; one that the disk keeps from its end is left to later housekeeping."""
        while deferred:
            try:
                deferred.pop(0)()
            except (StorageError, StoreError) as error:
                _logger.error("An errand failed: %s", error)
            except BaseException:
                with self.wakeup:
                    self._deferred = deferred + self._deferred
                raise

    def _has_work(self) -> bool:
        is_asked = (
            self._planner.has_ready() or self._sample_queue.total() > 0 or bool(self._deferred)
        )
        return is_asked or self._snapshots.has_work or self._supervisor.is_down

    def _run_once(self) -> None:
        self._supervisor.revive()
        with self.wakeup:
            self._skip_missing()
            can_train = self._planner.has_ready()
        kind = self._shares.next(can_train=can_train, can_sample=self._sample_queue.total() > 0)
        if kind is not None:
            self._spend(kind, self._train if kind == "train" else self._sample)
        if can_train or self._snapshots.has_work:
            self._spend("train", self._snapshots.maintain_snapshots)

    def _spend(self, kind: WorkKind, work: Callable[[], None]) -> None:
        began, engine = time.monotonic(), self._supervisor.current
        try:
            work()
        finally:
            # An engine that hung or died took its time from both kinds of work.
            if self._supervisor.current is engine:
                self._shares.spent(kind, time.monotonic() - began)

    def _sample(self) -> None:
        began = time.monotonic()
        self._sampling.run_for(_SPELL_S)
        _logger.debug("A slice of sampling took %.4f s.", time.monotonic() - began)

    def _train(self) -> None:
        with self.wakeup:
            has_waited = self._wait_for_others()
            if self._stopping.is_set():
                return
            batch = self._planner.next_batch(time.monotonic())
        if not batch:
            return
        began, computed = time.monotonic(), list[Computed]()
        self._cache.pinned = {operation.model_id for operation in batch}
        try:
            computed = self._executor.run(batch)
        finally:
            self._cache.pinned = set()
            with self.wakeup:
                self._planner.finished(batch, computed)
        self._record_batch(batch, began, has_waited=has_waited)
        _logger.debug(
            "A batch of %d operations of %d tenants took %.4f s, of which %.4f s in the engine.",
            len(batch),
            len({operation.owner for operation in batch}),
            time.monotonic() - began,
            sum(each.busy_seconds for each in computed),
        )

    def _wait_for_others(self) -> bool:
        """Lets those who train side by side share a batch; whether it had to wait for that. Called
        with the lock held."""
        began = now = time.monotonic()
        heads = self._planner.forward_heads()
        if heads is None:
            return False
        base, num_before = heads[0], len(heads[1])
        policy = self._wait_policies[base]
        if not policy.is_worth_a_wait(heads[1], now):
            return False
        while heads is not None and policy.is_missed(heads[1], now):
            rest_s = began + policy.patience_s(heads[1]) - now
            # Whatever else there is to do does not wait for it.
            if rest_s <= 0 or self._sample_queue.total() or self._stopping.is_set():
                break
            self.wakeup.wait(rest_s)
            heads, now = self._planner.forward_heads(), time.monotonic()
        policy.waited(has_come=heads is not None and len(heads[1]) > num_before)
        return True

    def _record_batch(self, batch: list[Operation], began: float, *, has_waited: bool) -> None:
        queue = self._planner.queue(batch[0].model_id)
        if batch[0].kind in FORWARD_KINDS and queue is not None:
            tokens: Counter[str] = Counter()
            for operation in batch:
                tokens[operation.model_id] += operation.cost
            now, policy = time.monotonic(), self._wait_policies[queue.engine_model]
            if not has_waited:
                with self.wakeup:
                    others = self._planner.forward_arrivals(queue.engine_model)
                policy.began(tokens, max(each.created_at for each in batch), others)
            policy.trained(tokens, now - began, now)

    def _note_idle(self) -> None:
        """Has one idle adapter and one idle sampler leave memory. Called with the lock held."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _TICK_S
        adapter, sampler = self._cache.idle(), self._adapters.samplers.idle()
        if adapter is not None:
            self._deferred.append(partial(self._evict_idle, adapter))
        if sampler is not None:
            self._deferred.append(partial(self._preparation.free, sampler))

    def _evict_idle(self, model_id: str) -> None:
        """Sets an idle adapter aside; if that fails, it stays and is tried again later."""
        self._cache.touch(model_id)
        try:
            self._evict(model_id)
        except (EngineError, StorageError, StoreError) as error:
            if isinstance(error, EngineFailure) and error.is_loss_of_engine:
                raise
            _logger.warning("The idle adapter %s stays in memory: %s", model_id, error)

    def _evict(self, model_id: str) -> None:
        """Frees the adapter's memory unless work for it waits; it comes back if it is needed."""
        with self.wakeup:
            queue = self._planner.queue(model_id)
            is_busy = queue is not None and len(queue) > 0
        if not is_busy and model_id in self._cache:
            self._snapshots.evict(model_id)

    def _forget(self, model_id: str) -> None:
        with self.wakeup:
            self._planner.close(model_id)
        if model_id in self._cache:
            self._adapters.snapshot_writer.drop(model_id)

    def _skip_missing(self) -> None:
        """Passes over numbers that will not come. Called with the lock held."""
        now = time.monotonic()
        for queue in self._planner.blocked():
            missing = [
                operations.nothing(queue.owner, queue.model_id, seq_id)
                for seq_id in queue.missing(now, self._missing_seq_grace_s)
            ]
            if not missing:
                continue
            try:
                free = self._db.write(operations.skip, missing)
            except StoreError as error:
                _logger.error("Missing numbers are waited for longer: %s", error)
                return
            if free:
                _logger.warning("%d numbers of %s never came.", len(free), queue.model_id)
            for each in missing:
                if each.seq_id in free:
                    queue.consume(each.seq_id)
                else:  # it is in the log and was never handed in
                    self._enqueue_logged(queue, each.seq_id, now)

    def _enqueue_logged(self, queue: ModelQueue, seq_id: int, now: float) -> None:
        operation = self._db.read(operations.find, queue.model_id, seq_id)
        if operation is not None and operation.state == "queued":
            self._planner.add(operation, now)
        else:
            queue.consume(seq_id)
