"""Whose prompt is next.

Scopes, which are tenants, take turns by the prompt tokens that were computed for them. Within one,
requests wait in proportion to what they ask for: each has a due time, which is all the work that
came before it plus a multiple of its own, and the earliest goes next. A short request so passes
longer ones that came shortly before, and none of them is passed by more than that multiple of its
own work, or by a fixed amount if that is less. First come first served has short requests wait as
long as the longest. Sequences that lost their place in a full cache go before everybody.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterator

from tinkex.engine.sample_jobs import Stem
from tinkex.fairness import FairTurns

__all__ = ["PromptOrder"]

_PATIENCE = 512
"""How many times its own work a request lets pass."""

_MOST_PASSED = 2**18
"""And how much work at most, in tokens of a prompt."""

_ANSWER_TOKEN = 3
"""What a token of an answer costs, in tokens of a prompt, where some are written together."""


class PromptOrder:
    """Stems that wait or are half way, in the order they are to be computed."""

    def __init__(self) -> None:
        self._back: list[Stem] = []  # those that ran already
        self._lines: dict[str, list[Stem]] = {}  # by due time
        self._arrived: dict[str, int] = {}  # work that came, by scope
        self._turns = FairTurns()

    def __len__(self) -> int:
        return len(self._back) + sum(len(line) for line in self._lines.values())

    def add(self, stem: Stem) -> None:
        """Gives a stem that has come its place."""
        work = _work(stem)
        before = self._arrived.get(stem.scope, 0)
        self._arrived[stem.scope] = before + work
        stem.due = before + min(_PATIENCE * work, _MOST_PASSED)
        line = self._lines.setdefault(stem.scope, [])
        insort_right(line, stem, key=lambda each: each.due)

    def add_before(self, stem: Stem, other: Stem) -> None:
        """Puts a stem that was split off before the other half."""
        line = self._line_of(other)
        line.insert(line.index(other), stem)

    def put_back(self, stem: Stem) -> None:
        """Puts a stem that has run before all others."""
        self._back.insert(0, stem)

    def remove(self, stem: Stem) -> None:
        """Takes a stem out."""
        line = self._line_of(stem)
        line.remove(stem)
        if line is not self._back and not line:
            del self._lines[stem.scope], self._arrived[stem.scope]

    def clear(self) -> None:
        """Takes all of them out."""
        self._back.clear()
        self._lines.clear()
        self._arrived.clear()

    def stems(self) -> list[Stem]:
        """All of them, scope by scope."""
        return [*self._back, *(stem for line in self._lines.values() for stem in line)]

    def in_turn(self) -> Iterator[Stem]:
        """All of them, each scope's by due time; whoever was charged least goes next."""
        yield from list(self._back)
        self._turns.forget_idle(set(self._lines))
        lines = {scope: iter(list(line)) for scope, line in self._lines.items()}
        while lines:
            scope = self._turns.next(lines)
            stem = next(lines[scope], None)
            if stem is None:
                del lines[scope]
            else:
                yield stem

    def charge(self, stem: Stem, num_tokens: int) -> None:
        """Notes tokens that are computed for a stem that has its turn."""
        if stem not in self._back:  # those were paid for
            self._turns.serve(stem.scope, num_tokens)

    def _line_of(self, stem: Stem) -> list[Stem]:
        return self._back if stem in self._back else self._lines[stem.scope]


def _work(stem: Stem) -> int:
    answers = len(stem.sequences) * (stem.job.max_new - 1)
    return len(stem.tokens) + _ANSWER_TOKEN * answers
