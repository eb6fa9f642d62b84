"""Whose prompt is next.

Scopes, which are tenants, take turns by the prompt tokens that were computed for them. Within one,
requests wait in proportion to what they ask for: each has a due time, which is all the work that
came before it plus a multiple of its own, and the earliest goes next. A short request so passes
longer ones that came shortly before, and none of them is passed by more than that multiple of its
own work, or by a fixed amount if that is less. First come first served has short requests wait as
long as the longest. A sequence that lost its blocks in a full cache keeps its request's due time.
"""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Callable, Container, Iterator

from tinkex.engine.sampling.state import Stem
from tinkex.fair_queue import FairTurns, due_time

__all__ = ["PrefillOrder"]

_ANSWER_TOKEN = 3
"""What a token of an answer costs, in tokens of a prompt, where some are written together."""


class PrefillOrder:
    """Stems that wait or are half way, in the order they are to be computed."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Stem]] = {}  # by due time
        self._arrived: dict[str, int] = {}  # work that came, by scope
        self._turns = FairTurns()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def add(self, stem: Stem) -> None:
        """Gives a stem that has come its place."""
        stem.due = stem.job.due = self._due_now(stem)
        self._arrived[stem.scope] = self._arrived.get(stem.scope, 0) + _work(stem)
        line = self._lines.setdefault(stem.scope, [])
        insort_right(line, stem, key=lambda each: each.due)

    def add_before(self, stem: Stem, other: Stem) -> None:
        """Puts a stem that was split off before the other half."""
        line = self._lines[other.scope]
        line.insert(line.index(other), stem)

    def put_back(self, stem: Stem) -> None:
        """Puts a stem that has run where its request was, before what is due at the same time."""
        stem.due = min(stem.job.due, self._due_now(stem))
        line = self._lines.setdefault(stem.scope, [])
        insort_left(line, stem, key=lambda each: each.due)

    def remove(self, stem: Stem) -> None:
        """Takes a stem out."""
        line = self._lines[stem.scope]
        line.remove(stem)
        if not line:
            del self._lines[stem.scope]
            self._arrived.pop(stem.scope, None)

    def clear(self) -> None:
        """Takes all of them out."""
        self._lines.clear()
        self._arrived.clear()

    def stems(self) -> list[Stem]:
        """All of them, scope by scope."""
        return [stem for line in self._lines.values() for stem in line]

    def has_any_of(self, scopes: Container[str]) -> bool:
        """Whether a stem is of one of these scopes."""
        return any(scope in scopes for scope in self._lines)

    def in_turn(
        self,
        is_wanted: Callable[[Stem], bool] = lambda _: True,
        scopes: Container[str] | None = None,
    ) -> Iterator[Stem]:
        """Those wanted of these scopes, each scope's by due time; the scope charged least goes
        next."""
        wanted = {scope: [*filter(is_wanted, line)] for scope, line in self._lines.items()}
        lines = {scope: iter(line) for scope, line in wanted.items() if line}
        self._turns.update(lines)  # with those that sit this step out: they lose no turn
        if scopes is not None:
            lines = {scope: line for scope, line in lines.items() if scope in scopes}
        while lines:
            scope = self._turns.next(lines)
            stem = next(lines[scope], None)
            if stem is None:
                del lines[scope]
            else:
                yield stem

    def charge(self, stem: Stem, num_tokens: int) -> None:
        """Notes tokens that are computed for a stem that has its turn."""
        self._turns.serve(stem.scope, num_tokens)

    def _due_now(self, stem: Stem) -> int:
        """The due time of a stem that comes now."""
        return due_time(self._arrived.get(stem.scope, 0), _work(stem))


def _work(stem: Stem) -> int:
    answers = len(stem.sequences) * (stem.job.max_new - 1)
    return len(stem.tokens) + _ANSWER_TOKEN * answers
