"""The order in which waiting prompts are computed.

Scopes, which are tenants, get equal shares of what is computed of prompts. Within one,
requests wait in proportion to their size: each has a due time, which is all the work that
came before it plus a multiple of its own, and the earliest goes next. A short request so passes
longer ones that came shortly before, and none of them is passed by more than that multiple of its
own work, or by a fixed amount if that is less. First come first served has short requests wait as
long as the longest. A sequence that lost its blocks in a full cache keeps its request's due time.
"""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Callable, Container, Iterator

from tinkex.engine.sampling.state import PendingPrefix
from tinkex.fair_queue import FairShares, due_time

__all__ = ["PrefillOrder"]

_ANSWER_TOKEN = 3
"""Cost of a token of an answer, in prompt tokens, where several answers are written
in one batch."""


class PrefillOrder:
    """Prefixes that wait or are partly computed, in the order they are to be computed."""

    def __init__(self) -> None:
        self._by_scope: dict[str, list[PendingPrefix]] = {}  # by due time
        self._arrived: dict[str, int] = {}  # work that came, by scope
        self._shares = FairShares()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._by_scope.values())

    def add(self, prefix: PendingPrefix) -> None:
        """Adds a new prefix in its place."""
        prefix.due = prefix.job.due = self._due_now(prefix)
        self._arrived[prefix.scope] = self._arrived.get(prefix.scope, 0) + _work(prefix)
        waiting = self._by_scope.setdefault(prefix.scope, [])
        insort_right(waiting, prefix, key=lambda each: each.due)

    def add_before(self, prefix: PendingPrefix, other: PendingPrefix) -> None:
        """Adds a prefix that was split off, before the other half."""
        waiting = self._by_scope[other.scope]
        waiting.insert(waiting.index(other), prefix)

    def put_back(self, prefix: PendingPrefix) -> None:
        """Puts a preempted prefix back at its request's due time, before others that
        are due then."""
        prefix.due = min(prefix.job.due, self._due_now(prefix))
        waiting = self._by_scope.setdefault(prefix.scope, [])
        insort_left(waiting, prefix, key=lambda each: each.due)

    def remove(self, prefix: PendingPrefix) -> None:
        """Removes a prefix."""
        waiting = self._by_scope[prefix.scope]
        waiting.remove(prefix)
        if not waiting:
            del self._by_scope[prefix.scope]
            self._arrived.pop(prefix.scope, None)

    def clear(self) -> None:
        """Removes all prefixes."""
        self._by_scope.clear()
        self._arrived.clear()

    def prefixes(self) -> list[PendingPrefix]:
        """All prefixes, scope by scope."""
        return [prefix for waiting in self._by_scope.values() for prefix in waiting]

    def has_any_of(self, scopes: Container[str]) -> bool:
        """Whether a prefix belongs to one of these scopes."""
        return any(scope in scopes for scope in self._by_scope)

    def in_fair_order(
        self,
        is_wanted: Callable[[PendingPrefix], bool] = lambda _: True,
        scopes: Container[str] | None = None,
    ) -> Iterator[PendingPrefix]:
        """Yields the given prefixes of these scopes, each scope's by due time; the scope charged
        least goes next."""
        wanted = {scope: [*filter(is_wanted, waiting)] for scope, waiting in self._by_scope.items()}
        by_scope = {scope: iter(waiting) for scope, waiting in wanted.items() if waiting}
        self._shares.update(by_scope)  # includes scopes that skip this step: they lose no share
        if scopes is not None:
            by_scope = {scope: waiting for scope, waiting in by_scope.items() if scope in scopes}
        while by_scope:
            scope = self._shares.next(by_scope)
            prefix = next(by_scope[scope], None)
            if prefix is None:
                del by_scope[scope]
            else:
                yield prefix

    def charge(self, prefix: PendingPrefix, cost: float) -> None:
        """Charges what is computed of a prefix to its scope, in tokens at the
        beginning of a prompt."""
        self._shares.serve(prefix.scope, cost)

    def _due_now(self, prefix: PendingPrefix) -> int:
        """Returns the due time of a prefix that arrives now."""
        return due_time(self._arrived.get(prefix.scope, 0), _work(prefix))


def _work(prefix: PendingPrefix) -> int:
    answers = len(prefix.sequences) * (prefix.job.max_new - 1)
    return len(prefix.tokens) + _ANSWER_TOKEN * answers
