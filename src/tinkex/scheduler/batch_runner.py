"""Takes the next batch of training operations for one engine slot and runs it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict

from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.queues.batch_wait import BatchWaitPolicy
from tinkex.scheduler.queues.cost_model import FORWARD_KINDS
from tinkex.scheduler.queues.planner import Computed
from tinkex.scheduler.running.executor import Executor
from tinkex.scheduler.shared import SharedParts
from tinkex.store.operations import Operation

__all__ = ["BatchRunner"]

_logger = logging.getLogger(__name__)


class BatchRunner:
    """Runs the operations of the models that belong to one slot. Used by its thread only."""

    def __init__(
        self, slot_id: int, shared: SharedParts, cache: AdapterCache, executor: Executor
    ) -> None:
        self._slot_id = slot_id
        self._planner = shared.planner
        self._sample_queue = shared.sample_queue
        self._placement = shared.placement
        self._load = shared.placement.loads[slot_id]
        self._wakeup = shared.wakeup
        self._cache = cache
        self._executor = executor
        self._wait_policies: defaultdict[str, BatchWaitPolicy] = defaultdict(BatchWaitPolicy)

    def has_ready(self) -> bool:
        """Whether an operation of the slot's models can run now. Called with the lock held."""
        return self._planner.has_ready(self._models())

    def run_next(self, stopping: threading.Event) -> None:
        """Runs the next batch to its end, if there is one and `stopping` is not set."""
        with self._wakeup:
            has_waited = self._wait_for_others(stopping)
            if stopping.is_set():
                return
            batch = self._planner.next_batch(time.monotonic(), self._models())
            if not batch:
                return
            self._cache.pinned = {operation.model_id for operation in batch}
            self._load.in_use = self._cache.pinned
            may_give_back = self._planner.may_give_back(batch)
        began, computed = time.monotonic(), list[Computed]()
        unfinished: list[Operation] = []
        try:
            computed, unfinished = self._executor.run(batch, may_give_back=may_give_back)
        finally:
            self._cache.pinned = set()
            with self._wakeup:
                self._load.in_use = None
                self._planner.finished(batch, computed)
                self._planner.forget_returns([each for each in batch if each not in unfinished])
                self._planner.give_back(unfinished, time.monotonic())
        if unfinished:
            _logger.warning(
                "No worker has replaced the one that was lost: %d operations that it had "
                "go back to the queue.",
                len(unfinished),
            )
        self._record_batch(batch, began, has_waited=has_waited)
        _logger.debug(
            "A batch of %d operations of %d tenants took %.4f s, of which %.4f s in the engine.",
            len(batch),
            len({operation.owner for operation in batch}),
            time.monotonic() - began,
            sum(each.busy_seconds for each in computed),
        )

    def _models(self) -> list[str]:
        """The slot's models. Those that have work and no slot get one first. Called with the lock
        held."""
        now = time.monotonic()
        for model_id in self._placement.without_slot(self._planner.busy_models()):
            is_ready = self._planner.has_ready([model_id])
            if is_ready and self._placement.assign(model_id, now) is None:
                break  # no slot trains
        return self._placement.models_of(self._slot_id)

    def _wait_for_others(self, stopping: threading.Event) -> bool:
        """Waits a moment for models that train side by side, so that they share a batch; whether
        it waited. Called with the lock held."""
        began = now = time.monotonic()
        heads = self._planner.forward_heads(self._models())
        if heads is None:
            return False
        base, num_before = heads[0], len(heads[1])
        policy = self._wait_policies[base]
        if not policy.is_worth_a_wait(heads[1], now):
            return False
        while heads is not None and policy.is_missed(heads[1], now):
            rest_s = began + policy.patience_s(heads[1]) - now
            # Other work does not wait for it.
            if rest_s <= 0 or self._sample_queue.has_work(self._slot_id) or stopping.is_set():
                break
            self._wakeup.wait(self._slot_id, rest_s)
            heads, now = self._planner.forward_heads(self._models()), time.monotonic()
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
                with self._wakeup:
                    others = self._planner.forward_arrivals(queue.engine_model, self._models())
                policy.began(tokens, max(each.created_at for each in batch), others)
            policy.trained(tokens, now - began, now)
