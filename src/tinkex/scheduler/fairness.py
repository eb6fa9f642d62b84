"""Deficit round robin: everybody with work gets the same cost served over time.

Pure. Each round gives every waiting key a quantum; a key is served when it has saved up the cost
of its next piece. A key without work saves nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping


class DeficitRoundRobin:
    """Whose turn it is, among keys whose next piece of work has a known cost."""

    def __init__(self, quantum: int = 4096) -> None:
        self._quantum = quantum
        self._saved: OrderedDict[str, int] = OrderedDict()

    def pick(self, heads: Mapping[str, int]) -> str:
        """The key to serve, charged with its cost. `heads` maps each waiting key to its cost."""
        self._join(heads)
        self._skip_idle_rounds(heads)
        while True:
            key, saved = next(iter(self._saved.items()))
            cost = max(1, heads.get(key, 0))
            if key in heads and saved >= cost:
                self._saved[key] = saved - cost
                return key
            if key in heads:
                self._saved[key] = saved + self._quantum
            self._saved.move_to_end(key)

    def charge(self, key: str, cost: int) -> None:
        """Charges a key with more than its pick did."""
        self._saved[key] -= cost

    def forget_idle(self, waiting: set[str]) -> None:
        """Drops the savings and debts of keys without work."""
        for key in [key for key in self._saved if key not in waiting]:
            del self._saved[key]

    def _join(self, heads: Mapping[str, int]) -> None:
        for key in heads:
            self._saved.setdefault(key, 0)

    def _skip_idle_rounds(self, heads: Mapping[str, int]) -> None:
        # As many whole rounds as nobody could be served in, in one go.
        lacking = min(max(1, cost) - self._saved[key] for key, cost in heads.items())
        rounds = max(0, -(-lacking // self._quantum) - 1)
        for key in heads:
            self._saved[key] += rounds * self._quantum
