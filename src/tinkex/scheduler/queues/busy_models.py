"""The models that have operations waiting, and which of them could run one now.

Pure. Kept up to date with every change, so that a decision need not look at all models.
"""

from __future__ import annotations

from collections.abc import Collection, KeysView

from tinkex.scheduler.queues.model_queue import ModelQueue

__all__ = ["BusyModels"]


class BusyModels:
    """Queues with something waiting, in the order they came to have that."""

    def __init__(self) -> None:
        self._queues: dict[str, ModelQueue] = {}
        self._places: dict[str, int] = {}  # in the order of `_queues`
        self._num_places = 0
        self._models_of: dict[str, set[str]] = {}  # by owner
        self._ready_of: dict[str, set[str]] = {}  # those with an operation to run now, by owner
        self._blocked: dict[str, None] = {}  # those without
        self._changed: set[str] = set()

    def __contains__(self, model_id: object) -> bool:
        return model_id in self._queues

    @property
    def model_ids(self) -> KeysView[str]:
        """All of them, in order."""
        return self._queues.keys()

    @property
    def owners(self) -> KeysView[str]:
        """The owners of the busy models."""
        return self._models_of.keys()

    @property
    def ready_owners(self) -> KeysView[str]:
        """The owners that have an operation that can run now."""
        return self._ready_of.keys()

    def queues(self, model_ids: Collection[str] | None = None) -> list[ModelQueue]:
        """The queues of those among these models, or of all, in order."""
        if model_ids is None:
            return list(self._queues.values())
        found = [each for each in model_ids if each in self._places]
        return [self._queues[each] for each in sorted(found, key=self._places.__getitem__)]

    def blocked(self) -> list[ModelQueue]:
        """Queues that wait for a number that has not come."""
        return [self._queues[each] for each in self._blocked]

    def models_of(self, owner: str) -> Collection[str]:
        """The owner's."""
        return self._models_of.get(owner, ())

    def ready_of(self, owner: str) -> Collection[str]:
        """The owner's that have an operation to run now."""
        return self._ready_of.get(owner, ())

    def note(self, queue: ModelQueue) -> None:
        """Updates the entry of a changed queue."""
        owner, model_id = queue.owner, queue.model_id
        if len(queue):
            self._add(queue)
        elif model_id in self._queues:
            del self._queues[model_id], self._places[model_id]
            _discard(self._models_of, owner, model_id)
        if queue.head() is not None:
            self._ready_of.setdefault(owner, set()).add(model_id)
            self._blocked.pop(model_id, None)
        else:
            _discard(self._ready_of, owner, model_id)
            if len(queue):
                self._blocked[model_id] = None
            else:
                self._blocked.pop(model_id, None)
        self._changed.add(owner)

    def note_change(self, owner: str) -> None:
        """Counts an owner among the changed ones."""
        self._changed.add(owner)

    def pop_changed(self) -> set[str]:
        """The owners of what has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _add(self, queue: ModelQueue) -> None:
        if queue.model_id not in self._queues:
            self._queues[queue.model_id] = queue
            self._places[queue.model_id] = self._num_places
            self._num_places += 1
            self._models_of.setdefault(queue.owner, set()).add(queue.model_id)


def _discard(by_owner: dict[str, set[str]], owner: str, model_id: str) -> None:
    """Removes a model, and its owner with the last one."""
    model_ids = by_owner.get(owner)
    if model_ids is not None:
        model_ids.discard(model_id)
        if not model_ids:
            del by_owner[owner]
