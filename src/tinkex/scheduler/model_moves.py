"""Moves of models between engine slots: requests those to one slot and carries out those from it.

A model moves as it is evicted and recovered: its slot takes a snapshot and unloads it between two
batches, the other loads it at its next operation. A slot whose engine is being started holds
nothing, so others take its models at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tinkex.engine.interface import EngineError, EngineFailure
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.adapters.snapshot_task import NotWrittenError
from tinkex.scheduler.queues.planner import ReadyModel
from tinkex.scheduler.rebalancing import (
    TIMES_COST,
    SlotWork,
    least_ahead_s,
    model_for_fairness,
    model_for_idle,
    overworked,
)
from tinkex.scheduler.shared import SharedParts
from tinkex.scheduler.slot_load import BUSY_SHARE
from tinkex.store import StoreError

__all__ = ["ModelMoves"]

_logger = logging.getLogger(__name__)

_IDLE_EVERY_S = 0.05
_BUSY_EVERY_S = 0.5
_EVERY_S = 4e-5
"""Times the square of the number of slots: each slot checks all others, at some 2 us each. This
bounds the time of all checks to about 5 %, for any number of slots."""

_ACTIVE_S = 5.0
_RETRY_S = 30.0
_MIN_LOST_S = 1.0
_AWAY_S = 3.0
"""Samples that ran in a slot's engine wait for its next one for that long: a cut connection comes
back sooner."""

_GONE_S = 15.0
"""A slot without an engine for longer counts as gone: its models are placed anew."""


class ModelMoves:
    """The moves to and from one slot. Used by its thread only."""

    def __init__(self, slot_id: int, shared: SharedParts, adapters: EngineAdapters) -> None:
        self._slot_id = slot_id
        self._planner = shared.planner
        self._placement = shared.placement
        self._sample_queue = shared.sample_queue
        self._wakeup = shared.wakeup
        self._adapters = adapters
        self._overview = shared.placement.overview
        self._load = shared.placement.loads[slot_id]
        self._looked_at = 0.0
        self._lost_s = 0.0  # idle time while another slot was overworked

    @property
    def has_moves(self) -> bool:
        """Whether a model should leave the slot."""
        if self._placement.has_requested_moves(self._slot_id):
            return True
        is_leaving = self._load.should_be_empty and time.monotonic() >= self._load.keeps_until
        return is_leaving and bool(self._placement.models_of(self._slot_id))

    def seek(self, now: float, *, is_idle: bool) -> None:
        """Requests the move of a model that should be here. Called with the lock held."""
        passed_s, num_slots = now - self._looked_at, self._placement.num_slots
        every_s = max(_IDLE_EVERY_S if is_idle else _BUSY_EVERY_S, num_slots**2 * _EVERY_S)
        if num_slots == 1 or passed_s < every_s:
            return
        self._looked_at = now
        if not self._load.can_take:
            return
        self._overview.update(now)
        if "sample" in self._load.roles:
            self._take_lost_samples()
        if not self._load.trains:
            return
        self._release_gone()
        moving = self._placement.moving_to(self._slot_id)
        if not moving:
            found = self._wanted(now, min(passed_s, 1.0), is_idle=is_idle)
            if found is not None and self._placement.request_move(found, self._slot_id):
                moving = [found]
                self._wakeup.notify_all()
        for model_id in moving:
            self._take_lost(model_id)

    def _take_lost_samples(self) -> None:
        """Retries here what a slot had when it lost its engine and does not get another soon."""
        gone = self._without_engine(_AWAY_S)
        if gone:
            self._sample_queue.take_over(gone, self._slot_id)

    def _release_gone(self) -> None:
        """Has the models of a slot that has been without an engine for long placed anew."""
        for slot_id in self._without_engine(_GONE_S):
            load = self._placement.loads[slot_id]
            lost = [each for each in self._placement.models_of(slot_id) if load.may_lose(each)]
            for model_id in lost:
                self._placement.release(model_id, slot_id)
            if lost:
                _logger.warning("worker-%d is down; %d models move.", slot_id, len(lost))
                self._sample_queue.give_back(slot_id)
                self._wakeup.notify_all()

    def _without_engine(self, longer_than_s: float) -> list[int]:
        """Slots that have waited longer for an engine."""
        loads = self._placement.loads
        starting = ((n, loads[n].starting_s()) for n in self._overview.without_engine)
        return [n for n, since_s in starting if since_s is not None and since_s > longer_than_s]

    def _take_lost(self, model_id: str) -> None:
        """Takes a model whose slot has no engine that holds it."""
        giver = self._placement.slot_of(model_id)
        if giver is not None and self._placement.loads[giver].may_lose(model_id):
            self._placement.move(model_id, giver, self._slot_id)
            self._sample_queue.give_back(giver)
            self._wakeup.notify_all()
            _logger.info("Model %s moved from worker-%d, which is down.", model_id, giver)

    def move_out(self) -> None:
        """Moves the models that other slots have requested; all models if it should have none."""
        requested = self._placement.requested_moves(self._slot_id)
        takers = self._for_all(requested) if self._load.should_be_empty else requested
        for model_id, taker in takers.items():
            self._give(model_id, taker)

    def _for_all(self, requested: Mapping[str, int]) -> dict[str, int | None]:
        """Where each model of the slot should go: None if no other slot trains."""
        now, found = time.monotonic(), dict[str, int | None](requested)
        for model_id in self._placement.models_of(self._slot_id):
            taker = self._placement.other_slot(self._slot_id, now)
            if taker is None and self._load.trains:  # drained, and the others are gone since
                self._load.keeps_until = now + _RETRY_S
            else:
                found.setdefault(model_id, taker)
        return found

    def _give(self, model_id: str, taker: int | None) -> None:
        began = time.monotonic()
        is_held = model_id in self._adapters.cache
        try:
            if is_held:
                self._adapters.snapshots.evict(model_id)
        except (EngineError, NotWrittenError, StorageError, StoreError) as error:
            if isinstance(error, EngineFailure) and error.is_loss_of_engine:
                raise  # what it held is in the store: the move goes on without it
            _logger.warning("Model %s stays on worker-%d: %s", model_id, self._slot_id, error)
            self._load.keeps_until = time.monotonic() + _RETRY_S
            self._placement.keep(model_id, self._slot_id)
            return
        with self._wakeup:
            if taker is None:
                self._placement.release(model_id, self._slot_id)
            else:
                self._placement.move(model_id, self._slot_id, taker)
            if is_held:
                self._placement.cost.record(time.monotonic() - began)
            self._wakeup.notify_all()
        where = "the queue" if taker is None else f"worker-{taker}"
        _logger.info("Model %s moved from worker-%d to %s.", model_id, self._slot_id, where)

    def _wanted(self, now: float, passed_s: float, *, is_idle: bool) -> str | None:
        cost_s = self._placement.cost.seconds
        if not is_idle:
            self._lost_s = 0.0
            if self._planner.spread_s() <= least_ahead_s(cost_s):
                return None  # spares a look at all models
            ready = self._ready_by_slot()
            others = [self._work_of(each, ready[each], now) for each in self._givers(now)]
            return model_for_fairness(ready[self._slot_id], others, cost_s)
        if not self._planner.has_ready() and not self._are_others_busy():
            self._lost_s = 0.0
            return None
        ready = self._ready_by_slot()
        others = [self._idle_work_of(each, ready[each], now) for each in self._givers(now)]
        found = model_for_idle(others, cost_s)
        if found is not None:
            self._lost_s = 0.0
            return found
        found = overworked(others)
        self._lost_s = 0.0 if found is None else self._lost_s + passed_s
        if self._lost_s <= max(_MIN_LOST_S, TIMES_COST * cost_s):
            return None
        self._lost_s = 0.0
        return found

    def _are_others_busy(self) -> bool:
        return any(each != self._slot_id for each in self._overview.busy)

    def _givers(self, now: float) -> list[int]:
        loads = enumerate(self._placement.loads)
        return [n for n, load in loads if n != self._slot_id and now >= load.keeps_until]

    def _ready_by_slot(self) -> list[list[ReadyModel]]:
        found: list[list[ReadyModel]] = [[] for _ in self._placement.loads]
        for each in self._planner.ready_models():
            slot_id = self._placement.slot_of(each.model_id)
            if slot_id is not None:
                found[slot_id].append(each)
        return found

    def _work_of(self, slot_id: int, ready: list[ReadyModel], now: float) -> SlotWork:
        load = self._placement.loads[slot_id]
        is_down = load.starting_s() is not None
        return SlotWork(
            busy=load.busy(now),
            ready=[each for each in ready if not is_down or load.may_lose(each.model_id)],
            is_computing=is_down or load.is_computing,
        )

    def _idle_work_of(self, slot_id: int, ready: list[ReadyModel], now: float) -> SlotWork:
        """With what only counts for a slot that has time: the backlog, and who was active."""
        work = self._work_of(slot_id, ready, now)
        if work.ready:
            work.backlog_s = self._planner.backlog_s(each.model_id for each in work.ready)
            work.backlog_s += self._placement.loads[slot_id].starting_s() or 0.0
        if work.busy >= BUSY_SHARE:
            model_ids = self._placement.models_of(slot_id)
            since = now - _ACTIVE_S
            work.active = [each for each in model_ids if self._planner.ran_since(each, since)]
        return work
