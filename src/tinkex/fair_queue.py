"""Fair shares by virtual time: keys that have work get equal service, in whatever unit is charged.

Pure. The key with the least service goes next. A key that comes to have work starts level with the
key served last: it goes next, and idle time earns it no claim to what others used meanwhile. A key
that leaves with more than its share keeps that debt until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_TIMES_ITS_WORK = 512
"""How many times its own work a request lets pass."""

_MOST_PASSED = 2**18
"""And how much work at most, in tokens."""


def due_time(arrived: int, work: int) -> int:
    """Where a tenant's request stands among its others: behind the work that came before it and a
    multiple of its own, so that a short one passes longer ones that came shortly before."""
    return arrived + min(_TIMES_ITS_WORK * work, _MOST_PASSED)


class FairShares:
    """Which key is served next, by the service each has had."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._now = 0.0  # virtual time: what the least served key had used when it was served

    def update(self, waiting: Collection[str]) -> None:
        """Sets which keys have work: those that had none start level, and keys without work are
        forgotten unless they are in debt."""
        for key in waiting:
            if key not in self._waiting:
                self._used[key] = max(self._now, self._used.get(key, self._now))
        self._waiting = set(waiting)
        for key in [key for key, used in self._used.items() if used <= self._now]:
            if key not in self._waiting:
                del self._used[key]

    def pick(self, heads: Mapping[str, float]) -> str:
        """The key to serve, charged with its cost. `heads` maps each waiting key to its cost."""
        key = self.next(heads)
        self.serve(key, heads[key])
        return key

    def next(self, keys: Collection[str]) -> str:
        """The key to serve among these, charged with nothing."""
        for key in keys:
            self._used.setdefault(key, self._now)
        return min(keys, key=self._used.__getitem__)

    def serve(self, key: str, cost: float) -> None:
        """Charges a key that is served now."""
        self.advance(key)
        self.charge(key, cost)

    def advance(self, key: str) -> None:
        """Moves the virtual time to that of a key which is served now, if it is the least served.

        A key served out of order, since its work fits in with another's, is ahead of the time.
        """
        used = self._used.setdefault(key, self._now)
        if all(used <= self._used[each] for each in self._waiting):
            self._now = max(self._now, used)

    def charge(self, key: str, cost: float) -> None:
        """Adds to what a key has used; takes away if the cost is negative."""
        self._used[key] = self.used(key) + cost

    def used(self, key: str) -> float:
        """What a key has used."""
        return self._used.get(key, self._now)
