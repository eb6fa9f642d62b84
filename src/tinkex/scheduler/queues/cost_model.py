"""How long engine work takes, learned from the batches that ran.

Pure. Forward passes take a time per pass through the model and a time per token, both fitted to
recent batches; operations of other kinds take a time each. An adapter's own requests never share a
pass, so a batch has as many passes as the largest number of operations of one model in it. To keep
the results of a batch takes a time of its own, however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tinkex.store.operations import Operation

__all__ = ["FORWARD_KINDS", "BatchEstimate", "CostModel"]

FORWARD_KINDS = frozenset({"forward", "forward_backward"})

_DECAY = 0.9
"""Weight of the batches before, at each new one: about ten batches count."""

_BACKWARD_TOKENS = 2
"""A token with a backward pass takes as long as this many without: the base is frozen, so the
backward pass is one product for each of the forward pass."""

_UNKNOWN_S = 0.1
"""Time of a pass, or of an operation without one, before the first was measured."""


class _Fit(msgspec.Struct):
    """Decayed sums of a least-squares fit: seconds = passes * a + tokens * b, neither negative."""

    passes2: float = 0.0
    passes_tokens: float = 0.0
    tokens2: float = 0.0
    passes_seconds: float = 0.0
    tokens_seconds: float = 0.0
    per_pass: float = 0.0
    per_token: float = 0.0

    def add(self, passes: float, tokens: float, seconds: float) -> None:
        """Adds a batch."""
        for name, value in (
            ("passes2", passes * passes),
            ("passes_tokens", passes * tokens),
            ("tokens2", tokens * tokens),
            ("passes_seconds", passes * seconds),
            ("tokens_seconds", tokens * seconds),
        ):
            setattr(self, name, _DECAY * getattr(self, name) + value)
        self.per_pass, self.per_token = self._coefficients()

    def predict(self, passes: float, tokens: float) -> float:
        """The seconds of a batch."""
        return passes * self.per_pass + tokens * self.per_token

    def _coefficients(self) -> tuple[float, float]:
        """Seconds per pass and per token."""
        if not self.tokens2:
            return self.passes_seconds / self.passes2, 0.0
        determinant = self.passes2 * self.tokens2 - self.passes_tokens**2
        # Batches with equal tokens per pass do not determine both times: half each.
        if determinant <= 1e-6 * self.passes2 * self.tokens2:
            return (
                0.5 * self.passes_seconds / self.passes2,
                0.5 * self.tokens_seconds / self.tokens2,
            )
        per_pass = self.passes_seconds * self.tokens2 - self.tokens_seconds * self.passes_tokens
        per_token = self.tokens_seconds * self.passes2 - self.passes_seconds * self.passes_tokens
        if per_pass < 0:
            return 0.0, self.tokens_seconds / self.tokens2
        if per_token < 0:
            return self.passes_seconds / self.passes2, 0.0
        return per_pass / determinant, per_token / determinant


class BatchEstimate:
    """A batch that grows operation by operation, and the time it will take."""

    def __init__(self, fit: _Fit | None, first: Operation) -> None:
        self._fit = fit
        self._count: Counter[str] = Counter()
        self._passes = 0
        self._tokens = 0
        self.add(first)

    @property
    def seconds(self) -> float:
        """The time for the operations so far."""
        return self._predict(self._passes, self._tokens)

    def seconds_with(self, operation: Operation) -> float:
        """The time if this operation joins."""
        return self._predict(self._passes_with(operation), self._tokens + _work(operation))

    def adds_pass(self, operation: Operation) -> bool:
        """Whether this operation would run after the others rather than together with them."""
        return self._passes_with(operation) > self._passes

    def add(self, operation: Operation) -> None:
        """Has the operation join."""
        self._passes = self._passes_with(operation)
        self._tokens += _work(operation)
        self._count[operation.model_id] += 1

    def record_into(self, fit: _Fit, seconds: float) -> None:
        """Records how long the batch took."""
        fit.add(self._passes, self._tokens, seconds)

    def _predict(self, passes: int, tokens: int) -> float:
        return _predict(self._fit, passes, tokens)

    def _passes_with(self, operation: Operation) -> int:
        if operation.kind not in FORWARD_KINDS:
            return self._passes + 1
        return max(self._passes, self._count[operation.model_id] + 1)


class CostModel:
    """Seconds that operations take, by base model and kind of operation."""

    def __init__(self) -> None:
        self._fits: dict[tuple[str, str], _Fit] = {}
        self._keep_s: dict[tuple[str, str], float] = {}

    def estimate(self, base: str, first: Operation) -> BatchEstimate:
        """The time of a batch on this base that begins with this operation."""
        return BatchEstimate(self._fits.get(_key(base, first)), first)

    def backlog_s(
        self, base: str, operations: Sequence[Operation], *, max_operations: int, max_tokens: int
    ) -> float:
        """The time of operations on this base, in batches within these limits."""
        by_kind: dict[tuple[str, str], list[Operation]] = {}
        for operation in operations:
            by_kind.setdefault(_key(base, operation), []).append(operation)
        total_s = 0.0
        for key, alike in by_kind.items():
            per_model = max(Counter(each.model_id for each in alike).values())
            num_batches = -(-len(alike) // max_operations)
            if key[1] == "forward":
                num_batches = max(num_batches, -(-sum(each.cost for each in alike) // max_tokens))
            passes = max(per_model, num_batches)
            total_s += _predict(self._fits.get(key), passes, sum(map(_work, alike)))
        return total_s

    def alone_s(self, base: str, operation: Operation) -> float:
        """The time of an operation that runs alone."""
        return _predict(self._fits.get(_key(base, operation)), 1, _work(operation))

    def keep_s(self, base: str, first: Operation) -> float:
        """The time to keep the results of a batch that begins with this operation."""
        return self._keep_s.get(_key(base, first), 0.0)

    def record(
        self, base: str, batch: Sequence[Operation], seconds: float, keep_s: float = 0.0
    ) -> None:
        """Records how long the engine took for a batch, and how long its results took to keep."""
        key = _key(base, batch[0])
        before_s = self._keep_s.get(key, keep_s)
        self._keep_s[key] = _DECAY * before_s + (1 - _DECAY) * keep_s
        estimate = self.estimate(base, batch[0])
        for operation in batch[1:]:
            estimate.add(operation)
        estimate.record_into(self._fits.setdefault(key, _Fit()), seconds)


def _key(base: str, operation: Operation) -> tuple[str, str]:
    return base, "forward" if operation.kind in FORWARD_KINDS else operation.kind


def _predict(fit: _Fit | None, passes: int, tokens: int) -> float:
    return _UNKNOWN_S * passes if fit is None else fit.predict(passes, tokens)


def _work(operation: Operation) -> int:
    """Tokens, weighed by what is done with them."""
    if operation.kind not in FORWARD_KINDS:
        return 0
    return operation.cost * (_BACKWARD_TOKENS if operation.kind == "forward_backward" else 1)
