"""Which engine slot runs which model.

The place for every decision about where models go. For now: a model stays with its slot until it is
released, and a new one goes to the slot with the fewest. A model is held by at most one slot: it is
released only after its state left the slot's engine.
"""

from __future__ import annotations

import threading

__all__ = ["Placement"]


class Placement:
    """The slots of all models that have one. Thread-safe."""

    def __init__(self, num_slots: int) -> None:
        self._lock = threading.Lock()
        self._slot_of: dict[str, int] = {}
        self._num_models = [0] * num_slots

    def assign(self, model_id: str) -> int:
        """The model's slot, chosen now if it has none."""
        with self._lock:
            slot_id = self._slot_of.get(model_id)
            if slot_id is None:
                slot_id = self._num_models.index(min(self._num_models))
                self._slot_of[model_id] = slot_id
                self._num_models[slot_id] += 1
            return slot_id

    def slot_of(self, model_id: str) -> int | None:
        """The model's slot, if it has one."""
        with self._lock:
            return self._slot_of.get(model_id)

    def release(self, model_id: str, slot_id: int) -> None:
        """Lets the model be assigned anew, if it is the slot's."""
        with self._lock:
            if self._slot_of.get(model_id) == slot_id:
                del self._slot_of[model_id]
                self._num_models[slot_id] -= 1
