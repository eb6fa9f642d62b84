"""Fair turns: everybody with work gets the same cost served over time, and nobody in long runs.

Pure. Who has used the least goes next. Whoever comes to have work begins where the others are, so a
newcomer is next but cannot claim the time it was away; and whoever leaves with more than its share
used finds that again until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FairTurns:
    """Whose turn it is, among keys whose next piece of work has a known cost."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._now = 0  # what the key that was served last had used before

    def pick(self, heads: Mapping[str, int]) -> str:
        """The key to serve, charged with its cost. `heads` maps each waiting key to its cost."""
        key = self.next(heads)
        self.serve(key, max(1, heads[key]))
        return key

    def next(self, keys: Collection[str]) -> str:
        """The key to serve among these, charged with nothing."""
        for key in keys:
            self._used.setdefault(key, self._now)
        return min(keys, key=self._used.__getitem__)

    def serve(self, key: str, cost: int) -> None:
        """Charges a key whose turn it is."""
        self._now = max(self._now, self._used[key])
        self._used[key] += cost

    def charge(self, key: str, cost: int) -> None:
        """Charges a key with more than its pick did."""
        self._used[key] += cost

    def forget_idle(self, waiting: set[str]) -> None:
        """Drops keys without work, unless they have used more than those who wait."""
        for key in [key for key, used in self._used.items() if used <= self._now]:
            if key not in waiting:
                del self._used[key]
