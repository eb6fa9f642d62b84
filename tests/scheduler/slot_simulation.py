"""Planner, placement and moves of several slots on a simulated clock, without engines.

Every model always has two operations waiting; each takes `operation_s` and stands alone. A move
takes `cost_s`, in which the model does not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from tests.scheduler.work import operation
from tinkex.scheduler.model_moves import ModelMoves
from tinkex.scheduler.placement import Placement
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import BatchLimits, Computed, Planner
from tinkex.scheduler.slot_load import SlotLoad
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.store.operations import Operation

TICK_S = 0.01


class Simulation:
    """`owners` maps models to tenants, `places` some of them to the slot they begin in."""

    def __init__(
        self,
        num_slots: int,
        owners: Mapping[str, str],
        places: Mapping[str, int],
        *,
        cost_s: float,
        operation_s: float = 0.05,
    ) -> None:
        self.now = 0.0
        self.used_s: Counter[str] = Counter()  # engine time by tenant
        self.num_moves = 0
        self.num_decisions = 0
        self.paused: set[str] = set()  # tenants that send nothing
        self._owners = dict(owners)
        self._cost_s, self._operation_s = cost_s, operation_s
        self.planner = Planner(BatchLimits(max_operations=1))
        self.placement = Placement([SlotLoad() for _ in range(num_slots)])
        self.placement.cost.record(cost_s / 2)
        wakeup = SlotWakeups(num_slots)
        self._wakeup = wakeup
        shared = SimpleNamespace(
            planner=self.planner, placement=self.placement, sample_queue=None, wakeup=wakeup
        )
        self._moves = [
            ModelMoves(slot_id, cast("Any", shared), cast("Any", None))
            for slot_id in range(num_slots)
        ]
        self._running: list[tuple[float, list[Operation]] | None] = [None] * num_slots
        self._free_at = [0.0] * num_slots
        self._next_seq: Counter[str] = Counter()
        for model_id, owner in owners.items():
            self.planner.open(ModelQueue(model_id, owner, "base"))
            slot_id = places.get(model_id)
            self.placement.assign(model_id, 0.0)
            if slot_id is not None:
                self.placement.move(model_id, 0, slot_id)
            for _ in range(2):
                self._add(model_id, owner)

    def run(self, seconds: float) -> None:
        """Lets the time pass."""
        end = self.now + seconds
        while self.now < end:
            for slot_id in range(self.placement.num_slots):
                self._step(slot_id)
            self.now += TICK_S

    def resume(self, owner: str) -> None:
        """Has a tenant that was paused send again."""
        for model_id in [each for each, its in self._owners.items() if its == owner]:
            queue = self.planner.queue(model_id)
            for _ in range(2 - (0 if queue is None else len(queue))):
                self._add(model_id, owner)

    def _step(self, slot_id: int) -> None:
        running = self._running[slot_id]
        if running is not None:
            if running[0] > self.now + 1e-9:
                return
            self._finish(slot_id, running[1])
        self._move_out(slot_id)
        if self._free_at[slot_id] > self.now + 1e-9:
            return
        self._place()
        batch = self.planner.next_batch(self.now, self.placement.models_of(slot_id))
        self.num_decisions += 1
        with self._wakeup:
            self._moves[slot_id].seek(self.now, is_idle=not batch)
        if batch:
            self.placement.loads[slot_id].begin(self.now)
            self.placement.loads[slot_id].in_use = {each.model_id for each in batch}
            self._running[slot_id] = (self.now + self._operation_s, batch)

    def _finish(self, slot_id: int, batch: list[Operation]) -> None:
        self._running[slot_id] = None
        self.placement.loads[slot_id].end(self.now)
        self.placement.loads[slot_id].in_use = None
        computed = Computed(operations=batch, busy_seconds=self._operation_s)
        self.planner.finished(batch, [computed])
        for each in batch:
            self.used_s[each.owner] += self._operation_s
            if each.owner not in self.paused:
                self._add(each.model_id, each.owner)

    def _move_out(self, slot_id: int) -> None:
        for model_id, taker in self._to_give(slot_id).items():
            if taker is None:
                self.placement.release(model_id, slot_id)
                continue
            self.placement.move(model_id, slot_id, taker)
            self.num_moves += 1
            for each in (slot_id, taker):
                self._free_at[each] = max(self._free_at[each], self.now + self._cost_s / 2)

    def _to_give(self, slot_id: int) -> dict[str, int | None]:
        """Where models of the slot should go, as `ModelMoves` says."""
        requested: dict[str, int | None] = dict(self.placement.requested_moves(slot_id))
        if self.placement.loads[slot_id].should_be_empty:
            for model_id in self.placement.models_of(slot_id):
                requested.setdefault(model_id, self.placement.other_slot(slot_id, self.now))
        return requested

    def _place(self) -> None:
        """Places the models that have work and no slot, as `BatchRunner` does."""
        for model_id in self.placement.without_slot(self.planner.busy_models()):
            self.placement.assign(model_id, self.now)

    def _add(self, model_id: str, owner: str) -> None:
        each = operation(model_id, self._next_seq[model_id], owner=owner)
        self._next_seq[model_id] += 1
        self.planner.add(each, self.now)
