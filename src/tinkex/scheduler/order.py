"""The order of one model's operations: by sequence number, whatever order they arrive in.

Pure; told the time. A number blocks its successors until it arrives, until a refusal of it was
seen, or until it counts as a hole: nothing came for the model during `grace_s` while later
numbers wait. Arrivals restart that clock, for the first chunk of a large batch is sent last, but
only up to `_PATIENCE` times the grace; then the hole is skipped for good.
"""

from __future__ import annotations

from itertools import islice

from tinkex.store.operations import Operation

_PATIENCE = 5


class ModelQueue:
    """The operations of one model that wait for their turn."""

    def __init__(
        self,
        model_id: str,
        owner: str,
        engine_model: str,
        *,
        next_seq: int = 0,
        refused: set[int] | None = None,
    ) -> None:
        self.model_id = model_id
        self.owner = owner
        self.engine_model = engine_model
        self.next_seq = next_seq
        self._consumed = set(refused or ())
        self._pending: dict[int, Operation] = {}
        self._blocked_since: float | None = None
        self._last_arrival = 0.0
        self._advance()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, operation: Operation, now: float) -> None:
        """Takes an operation; one whose number has passed is ignored."""
        if operation.seq_id >= self.next_seq:
            self._pending[operation.seq_id] = operation
        self._last_arrival = now
        self._watch(now)

    def consume(self, seq_id: int, now: float) -> None:
        """Counts a number as used: it was refused, or will not come."""
        self._consumed.add(seq_id)
        self._advance()
        self._watch(now)

    def has(self, seq_id: int) -> bool:
        """Whether the number waits here or has passed."""
        return seq_id < self.next_seq or seq_id in self._pending

    def head(self) -> Operation | None:
        """The operation that may run now."""
        return self._pending.get(self.next_seq)

    def pop(self, now: float) -> Operation:
        """Takes the head away."""
        operation = self._pending.pop(self.next_seq)
        self.next_seq += 1
        self._advance()
        self._blocked_since = None
        self._watch(now)
        return operation

    def holes(self, now: float, grace_s: float, most: int = 256) -> list[int]:
        """The first missing numbers, `most` of them, that nobody should wait for any longer."""
        if self._blocked_since is None:
            return []
        quiet_s = now - max(self._blocked_since, self._last_arrival)
        if quiet_s < grace_s and now - self._blocked_since < _PATIENCE * grace_s:
            return []
        numbers = range(self.next_seq, min(self._pending))
        return list(islice((n for n in numbers if n not in self._consumed), most))

    def _advance(self) -> None:
        while self.next_seq in self._consumed:
            self._consumed.discard(self.next_seq)
            self.next_seq += 1

    def _watch(self, now: float) -> None:
        if not self._pending or self.next_seq in self._pending:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
