"""Which operations make the next engine batch.

Pure. First an operation of the tenant that used the least engine time, and of that tenant's model
that used the least; then others that fit in (see `batch`), in the same order, until the batch is
full. Of one model, consecutive forward passes may share a batch; anything that changes weights
stands alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, KeysView
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

import msgspec

from tinkex.fair_queue import FairShares
from tinkex.scheduler.queues.batch import Batch, BatchLimits
from tinkex.scheduler.queues.busy_models import BusyModels
from tinkex.scheduler.queues.cost_model import FORWARD_KINDS, CostModel
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.recent_owners import RecentOwners
from tinkex.store.operations import Operation

__all__ = ["Activity", "BatchLimits", "Computed", "Planner", "ReadyModel"]

Models = Collection[str] | None
"""The models of a query, None for all; engine slots pass their own."""

_MAX_COUNTED = 64
"""Operations of one model that count in a backlog: more would not change what is decided by it."""

_MAX_RETURNS = 3
"""How often an operation whose worker was lost, and did not come back, may go to another one."""

_LEAST_S = 1e-6
"""Minimum charge for an operation, so that operations that take no time are shared too."""


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


class Activity(NamedTuple):
    """The state of a model's operations."""

    num_running: int
    num_waiting: int
    ran_at: float  # when one was last taken to run, by the monotonic clock
    missing_seq: int | None  # the number that those that wait are waiting for


class Planner:
    """The waiting operations of all models, and the engine time that tenants and models used."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._costs = CostModel()
        self._queues: dict[str, ModelQueue] = {}
        self._busy = BusyModels()
        self._owners = FairShares()
        self._models: dict[str, FairShares] = {}  # by owner
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
        self._busy.note(queue)
        self._recent.sent(queue.owner, now)

    def consume(self, queue: ModelQueue, seq_id: int) -> None:
        """Counts a number of an open queue as used."""
        queue.consume(seq_id)
        self._busy.note(queue)

    def remove(self, operation: Operation) -> None:
        """Drops an operation that waits; its number counts as used."""
        queue = self._queues[operation.model_id]
        queue.remove(operation.seq_id)
        self._busy.note(queue)
        self._returns.pop(operation.request_id, None)

    def note_sample(self, owner: str, now: float) -> None:
        """Notes that the owner has sent a sampling request, which batches should not delay much."""
        self._recent.sent(owner, now)

    def has_several_owners(self, now: float) -> bool:
        """Whether more than one owner has sent work a moment ago, of training or sampling."""
        return self._recent.are_several(now)

    def pending(self, owner: str) -> int:
        """How many of the owner's operations wait."""
        return sum([len(self._queues[model_id]) for model_id in self._busy.models_of(owner)])

    def owners(self) -> set[str]:
        """The owners whose operations wait."""
        return set(self._busy.owners)

    def busy_models(self) -> KeysView[str]:
        """The models that have operations waiting."""
        return self._busy.model_ids

    def blocked(self) -> Iterable[ModelQueue]:
        """Queues that wait for a number that has not come."""
        return self._busy.blocked()

    def has_ready(self, models: Models = None) -> bool:
        """Whether an operation of these models can run now."""
        if models is None:
            return bool(self._busy.ready_owners)
        queues = (self._queues[each] for each in models if each in self._busy)
        return any(queue.head() is not None for queue in queues)

    def num_ready(self) -> int:
        """How many operations could run now or after others of their model."""
        return sum(len(q) for q in self._busy.queues() if q.head() is not None)

    def waiting(self) -> tuple[int, int]:
        """How many operations wait, and their tokens."""
        queues = self._busy.queues()
        num_tokens = sum(each.cost for queue in queues for each in queue.waiting())
        return sum(map(len, queues)), num_tokens

    def waiting_operations(self) -> list[Operation]:
        """The operations that wait."""
        return [each for queue in self._busy.queues() for each in queue.waiting()]

    def num_running(self) -> int:
        """How many operations are being computed."""
        return sum(self._running.values())

    def forward_heads(self, models: Models = None) -> tuple[str, dict[str, int]] | None:
        """The base, and the tokens of every model that could run, if all of them are forward
        passes on one base and others still fit into their batch."""
        ready = self._ready(models)
        bases = {self._queues[model_id].engine_model for model_id in ready}
        if len(bases) != 1 or not all(each.kind in FORWARD_KINDS for each in ready.values()):
            return None
        tokens = {model_id: operation.cost for model_id, operation in ready.items()}
        is_full = len(tokens) >= self._limits.max_operations
        is_full |= sum(tokens.values()) >= self._limits.max_tokens
        return None if is_full else (bases.pop(), tokens)

    def forward_arrivals(self, base: str, models: Models = None) -> dict[str, float]:
        """When the forward passes on this base that could run now have come, by model."""
        return {
            model_id: operation.created_at
            for model_id, operation in self._ready(models).items()
            if operation.kind in FORWARD_KINDS and self._queues[model_id].engine_model == base
        }

    def next_batch(self, now: float, models: Models = None) -> list[Operation]:
        """The operations of these models to run together; empty if nothing can run."""
        # Shares are of all engines together: a tenant that waits for another engine waits here too.
        self._update_shares()
        ready = self._ready(models)
        by_owner = _by_owner(ready)
        batch: Batch | None = None
        least_passed: float | None = None  # the use of the first owner whose operation did not fit
        line = [(self._owners.used(owner), n, owner) for n, owner in enumerate(by_owner)]
        heapify(line)
        while line and (batch is None or not batch.is_full):
            used, place, owner = heappop(line)
            # If other models passed the next one, their usage would delay its owner further.
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
            queue = self._queues[operation.model_id]
            queue.put_back(operation, now)
            self._busy.note(queue)

    def may_give_back(self, batch: list[Operation]) -> bool:
        """Whether none of the operations was given back too often: one of them may be what ends
        the workers."""
        return all(self._returns[each.request_id] < _MAX_RETURNS for each in batch)

    def forget_returns(self, batch: list[Operation]) -> None:
        """Forgets how often the operations were given back: they have run."""
        for operation in batch:
            self._returns.pop(operation.request_id, None)

    def ready_models(self, models: Models = None) -> list[ReadyModel]:
        """Those of these models that have an operation to run now."""
        return [
            ReadyModel(
                queue.model_id,
                queue.owner,
                self._owners.used(queue.owner),
                sum(each.cost for each in islice(queue.waiting(), _MAX_COUNTED)),
                queue.model_id in self._running,
            )
            for queue in self._busy.queues(models)
            if queue.head() is not None
        ]

    def spread_s(self) -> float:
        """By how much engine time the tenants differ that have an operation to run now."""
        used = [self._owners.used(owner) for owner in self._busy.ready_owners]
        return max(used) - min(used) if used else 0.0

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

    def activity(self, model_id: str) -> Activity | None:
        """The state of the model's operations; None if its queue is not open."""
        queue = self._queues.get(model_id)
        if queue is None:
            return None
        is_blocked = len(queue) > 0 and queue.head() is None
        missing_seq = queue.next_seq if is_blocked else None
        return Activity(self._running[model_id], len(queue), queue.ran_at, missing_seq)

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

    def _update_shares(self) -> None:
        self._owners.update(self._busy.ready_owners)
        for owner in self._busy.pop_changed():
            model_ids = self._busy.ready_of(owner)
            if model_ids:
                self._models.setdefault(owner, FairShares()).update(model_ids)
            else:
                self._models.pop(owner, None)

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
        self._busy.note(queue)
        following = queue.head()
        if following is not None:
            ready[model_id] = following
        else:
            by_owner[owner].remove(model_id)

    def _charge(self, operation: Operation, seconds: float) -> None:
        self._owners.charge(operation.owner, seconds)
        if operation.owner in self._models:
            self._models[operation.owner].charge(operation.model_id, seconds)
            self._busy.note_change(operation.owner)

    def _alone_s(self, operation: Operation) -> float:
        return self._costs.alone_s(self._base(operation), operation)

    def _base(self, operation: Operation) -> str:
        return self._queues[operation.model_id].engine_model

    def _ready(self, models: Models) -> dict[str, Operation]:
        """The next operation of each of these models that has one to run."""
        heads = {queue.model_id: queue.head() for queue in self._busy.queues(models)}
        return {model_id: head for model_id, head in heads.items() if head is not None}


def _by_owner(ready: dict[str, Operation]) -> dict[str, list[str]]:
    by_owner: dict[str, list[str]] = {}
    for model_id, operation in ready.items():
        by_owner.setdefault(operation.owner, []).append(model_id)
    return by_owner
