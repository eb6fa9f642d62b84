"""What was computed since the start: totals for metrics, and tokens per second of the last moments.

Counted once per engine batch and per finished request, never per token. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from tinkex.store.clock import steady_now
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import Operation
from tinkex.telemetry.distribution import Distribution

__all__ = ["EngineBatch", "RecentTokens", "TokenUse", "WorkCounters", "WorkListener"]

TokenUse = Literal["trained", "scored", "sampled", "prompt", "prompt_cached"]
"""What was done with tokens. "scored" is a forward pass without backward; "prompt" are the tokens
of prompts to sample from, and "prompt_cached" those of them that were not computed again."""

OPERATION_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_BOUNDS = (64, 256, 1024, 4096, 16384, 65536, 262144)
SECOND_BOUNDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_RATE_WINDOW_S = 10


class EngineBatch(NamedTuple):
    """Training operations that one engine call computed, and when by `time.monotonic`."""

    operations: Sequence[Operation]
    began_at: float
    done_at: float


class WorkListener(Protocol):
    """Receives finished work; times are by `time.monotonic`."""

    def batch_done(self, batch: EngineBatch) -> None: ...
    def sample_done(self, request_id: str, began_at: float, done_at: float) -> None: ...


class RecentTokens:
    """Tokens by use in each of the last seconds. Pure; the caller passes the time."""

    def __init__(self, window_s: int = _RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._seconds: dict[int, Counter[TokenUse]] = {}

    def add(self, use: TokenUse, count: int, now: float) -> None:
        """Counts tokens in the second that `now` is in."""
        second = int(now)
        if second not in self._seconds:
            for old in [each for each in self._seconds if each <= second - self._window_s]:
                del self._seconds[old]
            self._seconds[second] = Counter()
        self._seconds[second][use] += count

    def per_second(self, now: float) -> Counter[TokenUse]:
        """Tokens per second by use, rounded, on average over the window."""
        totals: Counter[TokenUse] = Counter()
        for second, counts in self._seconds.items():
            if second > int(now) - self._window_s:
                totals.update(counts)
        return Counter({use: round(count / self._window_s) for use, count in totals.items()})


class WorkCounters:
    """The totals of one scheduler. Read them inside `with counters.lock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent = RecentTokens()
        self.lock = threading.Lock()
        self.tokens: Counter[TokenUse] = Counter()
        self.operations: Counter[tuple[str, str]] = Counter()  # by kind and outcome
        self.samples: Counter[str] = Counter()  # requests by outcome
        self.operation_s: dict[str, Distribution] = {}  # from submission to result, by kind
        self.sample_s = Distribution(SECOND_BOUNDS)
        self.batch_operations: dict[str, Distribution] = {}  # by kind
        self.batch_tokens: dict[str, Distribution] = {}
        self.batch_s: dict[str, Distribution] = {}
        self.listener: WorkListener | None = None

    def count_batch(self, batch: EngineBatch) -> None:
        """Counts operations that an engine has just computed together."""
        kind = batch.operations[0].kind
        with self.lock:
            _in(self.batch_operations, kind, OPERATION_BOUNDS).add(len(batch.operations))
            _in(self.batch_s, kind, SECOND_BOUNDS).add(batch.done_at - batch.began_at)
            tokens = sum(each.cost for each in batch.operations)
            _in(self.batch_tokens, kind, TOKEN_BOUNDS).add(tokens)
        if self.listener is not None:
            self.listener.batch_done(batch)

    def count_operations(
        self, outcomes: Sequence[OperationOutcome], outcome: str | None = None
    ) -> None:
        """Counts operations whose results are in the store: ok or error, or all as `outcome`."""
        now, ended_at = self._clock(), steady_now()
        with self.lock:
            for each in outcomes:
                kind, is_error = each.operation.kind, each.result.encoding == "error"
                self.operations[kind, outcome or ("error" if is_error else "ok")] += 1
                took_s = max(0.0, ended_at - each.operation.created_at)
                _in(self.operation_s, kind, SECOND_BOUNDS).add(took_s)
                if each.num_tokens:
                    use: TokenUse = "scored" if kind == "forward" else "trained"
                    self._add_tokens(use, each.num_tokens, now)

    def count_sample(
        self, outcome: str, created_at: float, tokens: dict[TokenUse, int] | None = None
    ) -> None:
        """Counts one sampling request that has ended: ok, error or cancelled."""
        now, took_s = self._clock(), max(0.0, steady_now() - created_at)
        with self.lock:
            self.samples[outcome] += 1
            self.sample_s.add(took_s)
            for use, count in (tokens or {}).items():
                self._add_tokens(use, count, now)

    def tokens_per_s(self) -> Counter[TokenUse]:
        """Tokens per second by use, over the last 10 s."""
        with self.lock:
            return self._recent.per_second(self._clock())

    def _add_tokens(self, use: TokenUse, count: int, now: float) -> None:
        self.tokens[use] += count
        self._recent.add(use, count, now)


def _in(by_kind: dict[str, Distribution], kind: str, bounds: Sequence[float]) -> Distribution:
    found = by_kind.get(kind)
    if found is None:
        found = by_kind[kind] = Distribution(bounds)
    return found
