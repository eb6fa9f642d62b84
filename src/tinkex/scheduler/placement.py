"""Which engine slot runs which model.

Pure; the caller passes the time. A model is held by at most one slot and stays there until its slot
releases it (its adapter left the engine's memory) or moves it to another (the state is in the store
by then). New models fill a slot before they spread: adapters that share a batch cost little more
than one. `rebalancing` decides when a model should move.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence

from tinkex.scheduler.slot_load import BUSY_SHARE, SlotLoad
from tinkex.scheduler.slot_overview import SlotOverview

__all__ = ["MoveCost", "Placement"]

_FIRST_COST_S = 0.1
_DECAY = 0.7


class MoveCost:
    """Seconds that a move takes: snapshot and unload, measured, and about as long to load."""

    def __init__(self) -> None:
        self._giving_s: float | None = None

    @property
    def seconds(self) -> float:
        """The expected cost of a move; low before the first, which then measures it."""
        return _FIRST_COST_S if self._giving_s is None else 2 * self._giving_s

    def record(self, giving_s: float) -> None:
        """Records how long a slot took to give a model away."""
        before_s = giving_s if self._giving_s is None else self._giving_s
        self._giving_s = _DECAY * before_s + (1 - _DECAY) * giving_s


class Placement:
    """The slots of all models that have one. Thread-safe; only changes take the lock."""

    def __init__(self, loads: Sequence[SlotLoad], *, max_models: int = 64) -> None:
        self.loads = list(loads)
        self.cost = MoveCost()
        self.overview = SlotOverview(self.loads)
        self._max_models = max_models
        self._lock = threading.Lock()
        self._slot_of: dict[str, int] = {}
        self._models: list[dict[str, None]] = [{} for _ in loads]
        self._requested: list[dict[str, int]] = [
            {} for _ in loads
        ]  # by the slot that has the model

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return len(self.loads)

    def assign(self, model_id: str, now: float) -> int | None:
        """The model's slot, chosen now if it has none; None if no slot trains."""
        slot_id = self._slot_of.get(model_id)
        if slot_id is not None:
            return slot_id
        with self._lock:
            slot_id = self._slot_of.get(model_id)
            if slot_id is None:
                slot_id = self._choose(now)
                if slot_id is not None:
                    self._put(model_id, slot_id)
            return slot_id

    def slot_of(self, model_id: str) -> int | None:
        """The model's slot, if it has one."""
        return self._slot_of.get(model_id)

    def without_slot(self, model_ids: Iterable[str]) -> list[str]:
        """Those of the models that no slot has."""
        with self._lock:
            return [each for each in model_ids if each not in self._slot_of]

    def models_of(self, slot_id: int) -> list[str]:
        """The models of a slot, in the order they came."""
        with self._lock:
            return list(self._models[slot_id])

    def release(self, model_id: str, slot_id: int) -> None:
        """Lets the model be assigned anew, if it is the slot's."""
        with self._lock:
            self._take(model_id, slot_id)

    def request_move(self, model_id: str, slot_id: int) -> bool:
        """Has the model's slot move it to this one. False if no slot has it, this one has, or it is
        moving already."""
        with self._lock:
            giver = self._slot_of.get(model_id)
            if giver is None or giver == slot_id or model_id in self._requested[giver]:
                return False
            self._requested[giver][model_id] = slot_id
            return True

    def has_requested_moves(self, slot_id: int) -> bool:
        """Whether the slot should move a model."""
        return bool(self._requested[slot_id])

    def requested_moves(self, slot_id: int) -> dict[str, int]:
        """The models that the slot should move, and the slots they should go to."""
        with self._lock:
            return dict(self._requested[slot_id])

    def moving_to(self, slot_id: int) -> list[str]:
        """The models that are on their way to the slot."""
        with self._lock:
            moves = [each for models in self._requested if models for each in models.items()]
        return [model_id for model_id, taker in moves if taker == slot_id]

    def move(self, model_id: str, giver: int, taker: int) -> None:
        """Assigns a model of one slot to another, or to none if that one does not train any more.
        Its state has left the giver's engine."""
        with self._lock:
            if self._take(model_id, giver) and self.loads[taker].trains:
                self._put(model_id, taker)

    def keep(self, model_id: str, slot_id: int) -> None:
        """Ends a requested move that was not carried out."""
        with self._lock:
            self._requested[slot_id].pop(model_id, None)

    def other_slot(self, slot_id: int, now: float) -> int | None:
        """Where a model of this slot should go when the slot is drained; None if no other slot can
        take it now. One that is drained too would only give it back."""
        with self._lock:
            others = [n for n, load in enumerate(self.loads) if n != slot_id and load.can_take]
            return self._choose(now, others)

    def _choose(self, now: float, among: Collection[int] | None = None) -> int | None:
        """The slot for another model: the fullest that is not too busy, else the least busy. None
        if no slot trains."""
        slots = list(range(self.num_slots) if among is None else among)
        slots = [each for each in slots if self.loads[each].trains]
        if len(slots) <= 1:
            return slots[0] if slots else None
        slots = [each for each in slots if not self.loads[each].is_draining] or slots
        slots = [each for each in slots if self.loads[each].can_take] or slots
        slots = [each for each in slots if len(self._models[each]) < self._max_models] or slots
        load = {each: (self.loads[each].busy(now), len(self._models[each])) for each in slots}
        free = [each for each in slots if load[each][0] < BUSY_SHARE]
        if free:
            return max(free, key=lambda each: (load[each], -each))
        return min(slots, key=lambda each: (load[each], each))

    def _put(self, model_id: str, slot_id: int) -> None:
        self._slot_of[model_id] = slot_id
        self._models[slot_id][model_id] = None

    def _take(self, model_id: str, slot_id: int) -> bool:
        if self._slot_of.get(model_id) != slot_id:
            return False
        del self._slot_of[model_id]
        del self._models[slot_id][model_id]
        self._requested[slot_id].pop(model_id, None)
        return True
