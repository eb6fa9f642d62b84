"""Whose prompt is next.

Scopes, which are tenants, take turns by the tokens they had computed. Within one, requests wait in
proportion to what they ask for: each has a due time, which is all the work that came before it plus
a multiple of its own, and the earliest goes next. A short request so passes longer ones that came
shortly before, and none of them is passed by more than that multiple of its own work. First come
first served has short requests wait as long as the longest.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterator

from tinkex.engine.sample_jobs import Stem
from tinkex.fairness import FairTurns

__all__ = ["PromptOrder"]

_PATIENCE = 512
"""How many times its own work a request lets pass."""

_ANSWER_TOKEN = 5
"""What a token of an answer costs, in tokens of a prompt, where some are written together."""


class PromptOrder:
    """Stems that wait or are half way, in the order they are to be computed."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Stem]] = {}
        self._arrived: dict[str, int] = {}  # work that came, by scope
        self._turns = FairTurns()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def add(self, stem: Stem) -> None:
        """Gives a stem that has come its place."""
        work = _work(stem)
        before = self._arrived.get(stem.scope, 0)
        self._arrived[stem.scope] = before + work
        stem.due = float(before + _PATIENCE * work)
        self.put(stem)

    def put(self, stem: Stem) -> None:
        """Puts a stem where it was due before."""
        insort_right(self._lines.setdefault(stem.scope, []), stem, key=lambda each: each.due)

    def put_first(self, stem: Stem) -> None:
        """Puts a stem before all others of its scope."""
        line = self._lines.setdefault(stem.scope, [])
        stem.due = min(stem.due, line[0].due if line else stem.due)
        line.insert(0, stem)

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

    def in_turn(self) -> Iterator[Stem]:
        """All of them, each scope's by due time; whoever was charged least goes next."""
        self._turns.forget_idle(set(self._lines))
        lines = {scope: iter(list(line)) for scope, line in self._lines.items()}
        while lines:
            scope = self._turns.pick(dict.fromkeys(lines, 1))
            stem = next(lines[scope], None)
            if stem is None:
                del lines[scope]
            else:
                yield stem

    def charge(self, stem: Stem, num_tokens: int) -> None:
        """Notes tokens that are computed for a stem that has its turn."""
        self._turns.charge(stem.scope, num_tokens)


def _work(stem: Stem) -> int:
    answers = len(stem.sequences) * (stem.job.max_new - 1)
    return len(stem.tokens) + _ANSWER_TOKEN * answers
