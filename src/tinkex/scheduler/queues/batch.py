"""An engine batch as it is put together: which operations fit in with those that are there.

Pure. Forward passes on one base share a batch, and optimizer steps of several models; anything
else stands alone. Two bounds hold on the time a batch is expected to take, until its results are
kept, because work that arrives meanwhile waits for its end. Another operation of a model that is in
the batch runs after the others, so it joins only while the whole batch is short, and never where
other tenants would wait for it: those in the batch, and those that sent work a moment ago. One of
another model shares their pass through the base, which is worth a longer batch.
"""

from __future__ import annotations

import msgspec

from tinkex.scheduler.queues.cost_model import FORWARD_KINDS, CostModel
from tinkex.store.operations import Operation

__all__ = ["Batch", "BatchLimits"]


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large an engine batch may grow."""

    max_tokens: int = 16_384
    max_operations: int = 64
    max_s: float = 0.05  # expected with keeping, where operations run one after the other
    max_shared: int = 8  # and, where they share a pass, in times of the first operation alone


class Batch:
    """Operations to run together."""

    def __init__(
        self,
        limits: BatchLimits,
        costs: CostModel,
        base: str,
        first: Operation,
        *,
        has_neighbours: bool = False,  # tenants that sent work a moment ago
    ) -> None:
        self.operations = [first]
        self._limits = limits
        self._base = base
        self._estimate = costs.estimate(base, first)
        self._has_neighbours = has_neighbours
        self._serial_s = limits.max_s - costs.keep_s(base, first)
        self._shared_s = max(self._serial_s, limits.max_shared * self._estimate.seconds)
        self._tokens = first.cost
        self._model_ids = {first.model_id}
        self._owners = {first.owner}

    @property
    def is_full(self) -> bool:
        """Whether no operation fits any more."""
        return len(self.operations) >= self._limits.max_operations

    def accepts(self, base: str, operation: Operation) -> bool:
        """Whether the operation, of a model on this base, may join."""
        if base != self._base or not self._is_alike(operation):
            return False
        if operation.model_id in self._model_ids and not self._has_one_tenant(operation):
            return False
        most_s = self._serial_s if self._estimate.adds_pass(operation) else self._shared_s
        return self._estimate.seconds_with(operation) <= most_s

    def add(self, operation: Operation) -> None:
        """Has the operation join."""
        self.operations.append(operation)
        self._estimate.add(operation)
        self._tokens += operation.cost
        self._model_ids.add(operation.model_id)
        self._owners.add(operation.owner)

    def _has_one_tenant(self, operation: Operation) -> bool:
        """Whether only the operation's tenant waits for the batch, now or probably soon."""
        return self._owners == {operation.owner} and not self._has_neighbours

    def _is_alike(self, operation: Operation) -> bool:
        first = self.operations[0]
        if first.kind in FORWARD_KINDS:
            has_room = self._tokens + operation.cost <= self._limits.max_tokens
            return operation.kind in FORWARD_KINDS and has_room
        is_step = first.kind == operation.kind == "optim_step"
        return is_step and operation.model_id not in self._model_ids
