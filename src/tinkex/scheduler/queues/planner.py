"""Which operations make the next engine batch.

Pure. First an operation of the tenant that used the least engine time, and of that tenant's model
that used the least; then others that fit in (see `batch`), in the same order, until the batch is
full. Of one model, consecutive forward passes may share a batch; anything that changes weights
stands alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

import msgspec

from tinkex.fair_queue import FairTurns
from tinkex.scheduler.queues.batch import Batch, BatchLimits
from tinkex.scheduler.queues.cost_model import FORWARD_KINDS, CostModel
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.recent_owners import RecentOwners
from tinkex.store.operations import Operation

__all__ = ["BatchLimits", "Computed", "Planner", "ReadyModel"]

ModelFilter = Callable[[str], bool]
"""Whether a model is among those that are asked about; engine slots ask about their own."""

_MAX_COUNTED = 64
"""Operations of one model that count in a backlog: more would not change what is decided by it."""

_MAX_RETURNS = 3
"""How often an operation whose worker was lost, and did not come back, may go to another one."""

_LEAST_S = 1e-6
"""Minimum charge for an operation, so that operations that take no time are shared too."""


def _every_model(_model_id: str) -> bool:
    return True


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that one engine call computed, and how long it took."""

    operations: list[Operation]
    busy_seconds: float
    load_s: float = 0.0  # to load adapters before the call
    keep_s: float = 0.0  # to store and publish the results
    is_typical: bool = True  # no operation was refused, which would make work look cheap


class ReadyModel(NamedTuple):
    """A model with an operation that can run now."""

    model_id: str
    owner: str
    used_s: float  # engine time that its owner has used, less what all have
    num_tokens: int  # of its waiting operations
    is_running: bool  # whether others of its operations are being computed


class Planner:
    """The waiting operations of all models, and the engine time that tenants and models used."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._costs = CostModel()
        self._queues: dict[str, ModelQueue] = {}
        self._busy: dict[str, None] = {}  # models with something pending, in order
        self._busy_of: dict[str, set[str]] = {}  # the same by owner
        self._owners = FairTurns()
        self._models: dict[str, FairTurns] = {}  # by owner
        self._charged: dict[str, float] = {}  # estimated seconds of what runs, by request id
        self._running: Counter[str] = Counter()  # operations by model
        self._returns: Counter[str] = Counter()  # how often, by request id
        self._recent = RecentOwners()

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
        self._recent.sent(queue.owner, now)

    def note_sample(self, owner: str, now: float) -> None:
        """Notes that the owner has sent a sampling request, which batches should not delay much."""
        self._recent.sent(owner, now)

    def pending(self, owner: str) -> int:
        """How many of the owner's operations wait."""
        return sum([len(self._queues[model_id]) for model_id in self._busy_of.get(owner, ())])

    def owners(self) -> set[str]:
        """Whose operations wait."""
        return set(self._busy_of)

    def blocked(self) -> Iterable[ModelQueue]:
        """Queues that wait for a number that has not come."""
        return [q for q in self._busy_queues() if q.head() is None]

    def has_ready(self, accepts: ModelFilter = _every_model) -> bool:
        """Whether an operation of these models can run now."""
        return any(
            queue.head() is not None and accepts(queue.model_id) for queue in self._busy_queues()
        )

    def num_ready(self) -> int:
        """How many operations could run now or after others of their model."""
        return sum(len(q) for q in self._busy_queues() if q.head() is not None)

    def waiting(self) -> tuple[int, int]:
        """How many operations wait, and their tokens."""
        queues = self._busy_queues()
        num_tokens = sum(each.cost for queue in queues for each in queue.waiting())
        return sum(map(len, queues)), num_tokens

    def forward_heads(
        self, accepts: ModelFilter = _every_model
    ) -> tuple[str, dict[str, int]] | None:
        """The base, and the tokens of every model that could run, if all of them are forward
        passes on one base and others still fit into their batch."""
        ready = self._ready(accepts)
        bases = {self._queues[model_id].engine_model for model_id in ready}
        if len(bases) != 1 or not all(each.kind in FORWARD_KINDS for each in ready.values()):
            return None
        tokens = {model_id: operation.cost for model_id, operation in ready.items()}
        is_full = len(tokens) >= self._limits.max_operations
        is_full |= sum(tokens.values()) >= self._limits.max_tokens
        return None if is_full else (bases.pop(), tokens)

    def forward_arrivals(self, base: str, accepts: ModelFilter = _every_model) -> dict[str, float]:
        """When the forward passes on this base that could run now have come, by model."""
        return {
            model_id: operation.created_at
            for model_id, operation in self._ready(accepts).items()
            if operation.kind in FORWARD_KINDS and self._queues[model_id].engine_model == base
        }

    def next_batch(self, now: float, accepts: ModelFilter = _every_model) -> list[Operation]:
        """The operations of these models to run together; empty if nothing can run."""
        # Shares are of all engines together: a tenant that waits for another engine waits here too.
        ready = self._ready(_every_model)
        self._update_shares(_by_owner(ready))
        ready = {each: operation for each, operation in ready.items() if accepts(each)}
        by_owner = _by_owner(ready)
        batch: Batch | None = None
        least_passed: float | None = None  # the use of the first owner whose operation did not fit
        line = [(self._owners.used(owner), n, owner) for n, owner in enumerate(by_owner)]
        heapify(line)
        while line and (batch is None or not batch.is_full):
            used, place, owner = heappop(line)
            # Were other models to pass the one that is next, their use would keep its owner behind.
            operation = ready[self._models[owner].next(by_owner[owner])]
            if batch is None:
                batch = self._begin(operation, now)
                self._owners.advance(owner)
            elif self._is_ahead(operation, used, least_passed) or not batch.accepts(
                self._base(operation), operation
            ):
                least_passed = used if least_passed is None else least_passed
                continue
            else:
                batch.add(operation)
            self._take(operation, ready, by_owner)
            if by_owner[owner]:
                heappush(line, (self._owners.used(owner), place, owner))
        if batch is None:
            return []
        for operation in batch.operations:
            self._running[operation.model_id] += 1
            self._queues[operation.model_id].ran_at = now
        return batch.operations

    def finished(self, batch: list[Operation], computed: list[Computed]) -> None:
        """Records how long a batch took, and charges tenants and models for that instead of the
        estimates."""
        for operation in batch:
            self._charge(operation, -self._charged[operation.request_id])
        for each in computed:
            if each.is_typical:
                base = self._base(each.operations[0])
                self._costs.record(base, each.operations, each.busy_seconds, each.keep_s)
            estimates = [self._charged[operation.request_id] for operation in each.operations]
            for operation, estimate_s in zip(each.operations, estimates, strict=True):
                part = estimate_s / sum(estimates)
                self._charge(operation, part * (each.busy_seconds + each.load_s))
        for operation in batch:
            del self._charged[operation.request_id]
            self._running[operation.model_id] -= 1
            if not self._running[operation.model_id]:
                del self._running[operation.model_id]

    def give_back(self, operations: list[Operation], now: float) -> None:
        """Queues operations again that were taken and have not run, in the order of their batch.
        `finished` has been called for them."""
        for operation in reversed(operations):
            self._returns[operation.request_id] += 1
            self._queues[operation.model_id].put_back(operation, now)
            self.add(operation, now)

    def may_give_back(self, batch: list[Operation]) -> bool:
        """Whether none of the operations was given back too often: one of them may be what ends
        the workers."""
        return all(self._returns[each.request_id] < _MAX_RETURNS for each in batch)

    def forget_returns(self, batch: list[Operation]) -> None:
        """Forgets how often the operations were given back: they have run."""
        for operation in batch:
            self._returns.pop(operation.request_id, None)

    def ready_models(self, accepts: ModelFilter = _every_model) -> list[ReadyModel]:
        """Those of these models that have an operation to run now."""
        return [
            ReadyModel(
                queue.model_id,
                queue.owner,
                self._owners.used(queue.owner),
                sum(each.cost for each in islice(queue.waiting(), _MAX_COUNTED)),
                queue.model_id in self._running,
            )
            for queue in self._busy_queues()
            if queue.head() is not None and accepts(queue.model_id)
        ]

    def backlog_s(self, model_ids: Iterable[str]) -> float:
        """The expected time of what waits for these models, in batches as large as may be."""
        by_base: dict[str, list[Operation]] = {}
        for model_id in model_ids:
            queue = self._queues.get(model_id)
            if queue is not None and len(queue):
                waiting = islice(queue.waiting(), _MAX_COUNTED)
                by_base.setdefault(queue.engine_model, []).extend(waiting)
        limits = self._limits
        return sum(
            self._costs.backlog_s(
                base,
                waiting,
                max_operations=limits.max_operations,
                max_tokens=limits.max_tokens,
            )
            for base, waiting in by_base.items()
        )

    def ran_since(self, model_id: str, since: float) -> bool:
        """Whether an operation of the model was taken to run since then."""
        queue = self._queues.get(model_id)
        return queue is not None and queue.ran_at >= since

    def _begin(self, first: Operation, now: float) -> Batch:
        return Batch(
            self._limits,
            self._costs,
            self._base(first),
            first,
            has_neighbours=self._recent.has_others(first.owner, now),
        )

    def _update_shares(self, by_owner: dict[str, list[str]]) -> None:
        self._owners.update(by_owner)
        for owner in [owner for owner in self._models if owner not in by_owner]:
            del self._models[owner]
        for owner, model_ids in by_owner.items():
            self._models.setdefault(owner, FairTurns()).update(model_ids)

    def _is_ahead(self, operation: Operation, used: float, least_passed: float | None) -> bool:
        """Whether its owner has used more, by over this operation, than one whose operation did
        not fit."""
        return least_passed is not None and used - least_passed > self._alone_s(operation)

    def _take(
        self, operation: Operation, ready: dict[str, Operation], by_owner: dict[str, list[str]]
    ) -> None:
        """Removes the operation from its queue, and charges its estimated time."""
        owner, model_id = operation.owner, operation.model_id
        queue = self._queues[model_id]
        self._models[owner].advance(model_id)
        self._charged[operation.request_id] = max(_LEAST_S, self._alone_s(operation))
        self._charge(operation, self._charged[operation.request_id])
        queue.pop()
        following = queue.head()
        if following is not None:
            ready[model_id] = following
        else:
            by_owner[owner].remove(model_id)
        if not len(queue):
            self._mark_idle(owner, model_id)

    def _charge(self, operation: Operation, seconds: float) -> None:
        self._owners.charge(operation.owner, seconds)
        if operation.owner in self._models:
            self._models[operation.owner].charge(operation.model_id, seconds)

    def _alone_s(self, operation: Operation) -> float:
        return self._costs.alone_s(self._base(operation), operation)

    def _base(self, operation: Operation) -> str:
        return self._queues[operation.model_id].engine_model

    def _ready(self, accepts: ModelFilter) -> dict[str, Operation]:
        """The next operation of each of these models that has one to run."""
        found = {}
        for queue in self._busy_queues():
            operation = queue.head()
            if operation is not None and accepts(queue.model_id):
                found[queue.model_id] = operation
        return found

    def _mark_idle(self, owner: str, model_id: str) -> None:
        """Removes a model without waiting operations from the busy ones."""
        self._busy.pop(model_id, None)
        self._busy_of[owner].discard(model_id)
        if not self._busy_of[owner]:
            del self._busy_of[owner]

    def _busy_queues(self) -> list[ModelQueue]:
        return [self._queues[model_id] for model_id in self._busy]


def _by_owner(ready: dict[str, Operation]) -> dict[str, list[str]]:
    by_owner: dict[str, list[str]] = {}
    for model_id, operation in ready.items():
        by_owner.setdefault(operation.owner, []).append(model_id)
    return by_owner
