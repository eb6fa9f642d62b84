"""Which operations make the next engine batch.

Pure. First whose turn it is (the tenant that used the least, then that tenant's models the same
way), then whatever else is compatible, by the same fairness, until the batch is full. Of one
model, consecutive forward passes may share a batch; anything that changes weights stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tinkex.fairness import FairTurns
from tinkex.scheduler.order import ModelQueue
from tinkex.store.operations import Operation

FORWARD_KINDS = frozenset({"forward", "forward_backward"})


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large an engine batch may grow."""

    max_tokens: int = 16_384
    max_operations: int = 64


class Planner:
    """The waiting operations of all models, and whose turn it is."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._queues: dict[str, ModelQueue] = {}
        self._busy: dict[str, None] = {}  # models with something pending, in order
        self._busy_of: dict[str, set[str]] = {}  # the same by owner
        self._owners = FairTurns()
        self._models: dict[str, FairTurns] = {}

    def queue(self, model_id: str) -> ModelQueue | None:
        """The model's queue."""
        return self._queues.get(model_id)

    def open(self, queue: ModelQueue) -> ModelQueue:
        """The model's queue: the one known already, or this one from now on."""
        return self._queues.setdefault(queue.model_id, queue)

    def close(self, model_id: str) -> None:
        """Forgets the model's queue, unless something waits in it."""
        if model_id not in self._busy:
            self._queues.pop(model_id, None)

    def add(self, operation: Operation, now: float) -> None:
        """Queues an operation of a model whose queue is open."""
        queue = self._queues[operation.model_id]
        queue.add(operation, now)
        self._busy[queue.model_id] = None
        self._busy_of.setdefault(queue.owner, set()).add(queue.model_id)

    def pending(self, owner: str) -> int:
        """How many of the owner's operations wait."""
        return sum([len(self._queues[model_id]) for model_id in self._busy_of.get(owner, ())])

    def owners(self) -> set[str]:
        """Whose operations wait."""
        return set(self._busy_of)

    def blocked(self) -> Iterable[ModelQueue]:
        """Queues that wait for a number that has not come."""
        return [q for q in self._busy_queues() if q.head() is None]

    def has_ready(self) -> bool:
        """Whether anything can run now."""
        return any(q.head() is not None for q in self._busy_queues())

    def num_ready(self) -> int:
        """How many operations wait for nothing but their turn."""
        return sum(len(q) for q in self._busy_queues() if q.head() is not None)

    def forward_heads(self) -> tuple[str, dict[str, int]] | None:
        """The base, and the tokens of every model that could run, if all of them are forward
        passes on one base and others still fit into their batch."""
        ready = self._ready(lambda _queue, _operation: True)
        bases = {self._queues[model_id].engine_model for model_id in ready}
        if len(bases) != 1 or not all(each.kind in FORWARD_KINDS for each in ready.values()):
            return None
        tokens = {model_id: operation.cost for model_id, operation in ready.items()}
        is_full = len(tokens) >= self._limits.max_operations
        is_full |= sum(tokens.values()) >= self._limits.max_tokens
        return None if is_full else (bases.pop(), tokens)

    def forward_arrivals(self, base: str) -> dict[str, float]:
        """When the forward passes on this base that could run now have come, by model."""
        ready = self._ready(lambda queue, _operation: queue.engine_model == base)
        return {
            model_id: operation.created_at
            for model_id, operation in ready.items()
            if operation.kind in FORWARD_KINDS
        }

    def next_batch(self, now: float) -> list[Operation]:
        """The operations to run together; empty if nothing can run."""
        ready = self._ready(lambda _queue, _operation: True)
        if not ready:
            return []
        self._owners.forget_idle({self._queues[model_id].owner for model_id in ready})
        first = self._take(ready, now)
        batch, tokens = [first], first.cost
        while len(batch) < self._limits.max_operations:
            room = self._limits.max_tokens - tokens
            fitting = self._ready(self._compatible(batch, room))
            if not fitting:
                break
            batch.append(self._take(fitting, now))
            tokens += batch[-1].cost
        return batch

    def _compatible(
        self, batch: list[Operation], room: int
    ) -> Callable[[ModelQueue, Operation], bool]:
        first = batch[0]
        base = self._queues[first.model_id].engine_model
        taken = {operation.model_id for operation in batch}

        def fits(queue: ModelQueue, operation: Operation) -> bool:
            if queue.engine_model != base:
                return False
            if first.kind in FORWARD_KINDS:
                return operation.kind in FORWARD_KINDS and operation.cost <= room
            is_step = first.kind == operation.kind == "optim_step"
            return is_step and operation.model_id not in taken

        return fits

    def _ready(self, accept: Callable[[ModelQueue, Operation], bool]) -> dict[str, Operation]:
        found = {}
        for queue in self._busy_queues():
            operation = queue.head()
            if operation is not None and accept(queue, operation):
                found[queue.model_id] = operation
        return found

    def _take(self, ready: dict[str, Operation], now: float) -> Operation:
        by_owner: dict[str, dict[str, int]] = {}
        for model_id, operation in ready.items():
            by_owner.setdefault(self._queues[model_id].owner, {})[model_id] = operation.cost
        owner = self._owners.pick({name: min(costs.values()) for name, costs in by_owner.items()})
        turns = self._models.setdefault(owner, FairTurns())
        turns.forget_idle(set(by_owner[owner]))
        model_id = turns.pick(by_owner[owner])
        cheapest = min(by_owner[owner].values())
        self._owners.charge(owner, by_owner[owner][model_id] - cheapest)
        operation = self._queues[model_id].pop(now)
        if not len(self._queues[model_id]):
            self._rest(owner, model_id)
        return operation

    def _rest(self, owner: str, model_id: str) -> None:
        """Nothing of the model waits any more."""
        self._busy.pop(model_id, None)
        self._busy_of[owner].discard(model_id)
        if not self._busy_of[owner]:
            del self._busy_of[owner]

    def _busy_queues(self) -> list[ModelQueue]:
        return [self._queues[model_id] for model_id in self._busy]
