"""Which tenants may have another sample running in an engine, by their running ones.

A new tenant does not wait until others finish: each gets an equal share of the limit, and a few
short requests more, above the limit if needed. With n tenants an engine has at most
limit * (1 + 1/2 + ... + 1/n) requests that way, and a quarter of the limit for each tenant's short
ones. A limit of one is kept strictly: each request runs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tinkex.scheduler.queues.tenant_samples import Fits, TenantSamples

if TYPE_CHECKING:
    from tinkex.scheduler.queues.slot_samples import QueuedSample

__all__ = ["RunningLimits"]

_SHORT = 16  # a request is short if it costs so many times less than its tenant's running ones


class RunningLimits:
    """The running samples of one engine, counted by tenant, against the limit."""

    def __init__(
        self, running: Collection[QueuedSample], waiting_owners: Iterable[str], limit: int
    ) -> None:
        self._count: Counter[str] = Counter()
        self._cost: Counter[str] = Counter()
        self._num_running = self._total_cost = 0
        self._limit = limit
        # Where requests finish between two calls, tenants get what is free in turn by cost.
        self._is_stuck = len(running) >= limit > 1
        for each in running:
            self.add(each)
        self._num_owners = len(self._count.keys() | set(waiting_owners))

    def add(self, queued: QueuedSample) -> None:
        """Counts a request as running."""
        owner, cost = queued.sample.owner, queued.sample.cost
        self._count[owner] += 1
        self._cost[owner] += cost
        self._num_running += 1
        self._total_cost += cost

    def next_of_tenants(
        self, lines: Mapping[str, TenantSamples], fits: Fits | None
    ) -> dict[str, QueuedSample]:
        """The next request of each tenant that may have another one running, of those that fit."""
        if self._num_running < self._limit:
            found = {owner: line.first(fits) for owner, line in lines.items()}
        elif self._is_stuck:
            found = {owner: self._next_of(owner, line, fits) for owner, line in lines.items()}
        else:
            return {}
        return {owner: queued for owner, queued in found.items() if queued is not None}

    def _next_of(self, owner: str, line: TenantSamples, fits: Fits | None) -> QueuedSample | None:
        """The tenant's request to run: the next one if the tenant has less than its share, by
        requests and by cost, else its shortest if that is far shorter than those it has running."""
        count, cost = self._count[owner], self._cost[owner]
        has_less = cost * self._num_owners <= self._total_cost
        if count < max(1, self._limit // self._num_owners) and has_less:
            return line.first(fits)
        shortest = line.shortest()
        is_short = shortest.sample.cost * _SHORT * count <= cost
        is_short = is_short and (fits is None or fits(shortest))
        return shortest if is_short and count < self._limit + self._limit // 4 else None
