"""The order of one model's operations: by sequence number, whatever order they arrive in.

Pure; the caller passes the time. A number blocks its successors until it arrives, until a refusal
of it was seen, or until it has been missing for `hole_grace_s`, counted from the arrival of
the first operation with a later number; then it is skipped for good. That clock stops while a
request of the model is being received: the first chunk of a large batch is sent last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from tinkex.store.operations import Operation


class ModelQueue:
    """The waiting operations of one model."""

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
        self.ran_at = -math.inf  # when an operation of the model was last taken to run
        self._consumed = set(refused or ())
        self._pending: dict[int, Operation] = {}  # in the order they arrived
        self._arrived_at: dict[int, float] = {}  # by the clock that stands still at times
        self._stopped_s = 0.0
        self._stopped_at: float | None = None
        self._advance()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, operation: Operation, now: float) -> None:
        """Adds an operation; one whose number has passed is ignored."""
        seq_id = operation.seq_id
        if seq_id >= self.next_seq:
            self._pending[seq_id] = operation
            self._arrived_at.setdefault(seq_id, self._clock(now))

    def consume(self, seq_id: int) -> None:
        """Counts a number as used: it was refused, or will not come."""
        self._consumed.add(seq_id)
        self._advance()

    def has(self, seq_id: int) -> bool:
        """Whether the number waits here or has passed."""
        return seq_id < self.next_seq or seq_id in self._pending

    def waiting(self) -> Iterator[Operation]:
        """The operations that wait, in the order they arrived."""
        return iter(self._pending.values())

    def head(self) -> Operation | None:
        """The operation that may run now."""
        return self._pending.get(self.next_seq)

    def pop(self) -> Operation:
        """Removes and returns the head."""
        operation = self._pending.pop(self.next_seq)
        del self._arrived_at[self.next_seq]
        self.next_seq += 1
        self._advance()
        return operation

    def remove(self, seq_id: int) -> None:
        """Drops an operation that waits; its number counts as used."""
        del self._pending[seq_id], self._arrived_at[seq_id]
        self.consume(seq_id)

    def put_back(self, operation: Operation, now: float) -> None:
        """Has the operation that was popped last be the head again."""
        self._consumed.update(range(operation.seq_id + 1, self.next_seq))
        self.next_seq = operation.seq_id
        self.add(operation, now)

    def stop_clock(self, now: float) -> None:
        """Stops the clock: a request of the model is being received."""
        if self._stopped_at is None:
            self._stopped_at = now

    def go_on(self, now: float) -> None:
        """Restarts the clock: no request of the model is being received any more."""
        if self._stopped_at is not None:
            self._stopped_s += now - self._stopped_at
            self._stopped_at = None

    def missing(self, now: float, hole_grace_s: float, most: int = 256) -> list[int]:
        """The first missing numbers, at most `most`, if the grace time is over."""
        if not self._pending or self.next_seq in self._pending:
            return []
        # Everything that waits has a later number; what came first began the clock.
        since = next(iter(self._arrived_at.values()))
        if self._clock(now) - since < hole_grace_s:
            return []
        numbers = range(self.next_seq, min(self._pending))
        return list(islice((n for n in numbers if n not in self._consumed), most))

    def _clock(self, now: float) -> float:
        """The time, without the periods in which a request of the model was being received."""
        return (now if self._stopped_at is None else self._stopped_at) - self._stopped_s

    def _advance(self) -> None:
        while self.next_seq in self._consumed:
            self._consumed.discard(self.next_seq)
            self.next_seq += 1
