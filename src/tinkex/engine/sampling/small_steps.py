"""Which tenants' rows the next sampling step computes: all rows, or those of tenants with few.

A step of the whole batch is the normal case: rows that share a step cost less than rows apart. But
where a step of 256 rows takes many times as long as one of a few rows, a tenant with few would wait
for its neighbours' rows at every token. So between two whole steps tenants with few rows may have
small steps of their own. A tenant has few if it has at most half as many as tenants have on
average. Three conditions bound what that costs the others.

- Cost: the small step takes less than `MAX_RELATIVE_COST` of a whole one, by what steps took
  lately. Where cost hardly depends on the number of rows, as on a GPU, there are no small steps but
  for a few that are tried, at most one in 4,096 whole ones after a while.
- Total: small steps are paid from a credit that whole steps earn, `SMALL_SHARE` seconds for each
  second, and that never exceeds one whole step. In any span of time small steps so take at most
  `SMALL_SHARE` of the time of whole steps and 1.5 whole steps more (the half is for one that takes
  longer than expected): tenants with many rows keep at least 1 / (1 + SMALL_SHARE) of their
  throughput, two thirds, however many tenants have few and however busy these are.
- Share: so does each tenant, from a credit of its own that earns 1/n with n tenants (`SMALL_SHARE`
  at most), so its small steps have no more than its fair share of the time. A small step is charged
  to its tenants by their rows. Credit is kept while a tenant has no rows: coming anew earns
  nothing.

With whole steps of W seconds and small ones of s, m tokens of a tenant with few rows take no longer
than (m + 1) * s * (1 + SMALL_SHARE) / min(SMALL_SHARE, 1/n) + 2 * W: with two tenants, three times
as long as alone and the wait for the step that runs when it comes. No tenant waits longer than
2.5 * W for a token.

Pure: costs are measured by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tinkex.engine.sampling.step_costs import StepCosts

__all__ = ["MAX_RELATIVE_COST", "SMALL_SHARE", "SmallSteps"]

SMALL_SHARE = 1 / 2
"""Seconds of small steps for each second of whole ones."""

MAX_RELATIVE_COST = 1 / 4
"""Maximum cost of a small step, relative to a whole one."""

_FIRST_PAUSE, _LONGEST_PAUSE = 64, 4096
"""Whole steps until a small step that cost too much is tried again; the pause doubles each time."""


class SmallSteps:
    """The costs of steps, and the credit for small ones of each tenant."""

    def __init__(self) -> None:
        self._costs = StepCosts()
        self._last_whole_s = 0.0
        self._credit_s = 0.0
        self._credit_of: dict[str, float] = {}  # a tenant that is not here has a whole step's
        self._pause = 0
        self._num_whole = 0  # since the last small step

    def choose(self, rows: Mapping[str, int]) -> Collection[str]:
        """Returns the tenants of the next step, of those that could use this many rows each."""
        if len(rows) < 2 or self._credit_s <= 0:
            return rows.keys()
        chosen = self._tenants_with_few(rows)
        if chosen:
            return chosen
        fewest = min(rows, key=rows.__getitem__)
        return [fewest] if _has_few(fewest, rows) and self._may_try() else rows.keys()

    def record(self, rows: Mapping[str, int], seconds: float, *, is_whole: bool) -> None:
        """Records the seconds of a step with this many rows of each tenant."""
        num_rows = sum(rows.values())
        self._costs.record(num_rows, seconds)
        if is_whole:
            self._earn(seconds, len(rows))
            return
        self._credit_s -= seconds
        for tenant, count in rows.items():
            self._credit_of[tenant] = self._credit(tenant) - seconds * count / num_rows
        is_cheap = seconds < MAX_RELATIVE_COST * self._last_whole_s
        longer = min(max(_FIRST_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        self._pause = _FIRST_PAUSE if is_cheap else longer
        self._num_whole = 0

    def _tenants_with_few(self, rows: Mapping[str, int]) -> list[str]:
        """Returns the tenants whose rows together make a small step that is paid for; none
        if it is not."""
        whole_s = min(self._last_whole_s, self._costs.at_least(sum(rows.values())))
        chosen: list[str] = []
        num_rows, total_s = 0, 0.0
        few = [tenant for tenant in rows if _has_few(tenant, rows)]
        for tenant in sorted(few, key=rows.__getitem__):
            count = num_rows + rows[tenant]
            cost_s = self._costs.at_most(count)
            if not cost_s < MAX_RELATIVE_COST * whole_s:
                break
            if self._credit(tenant) >= cost_s * rows[tenant] / count:
                chosen.append(tenant)
                num_rows, total_s = count, cost_s
        return chosen if total_s <= self._credit_s else []

    def _earn(self, seconds: float, num_tenants: int) -> None:
        self._num_whole += 1
        self._last_whole_s = seconds
        self._credit_s = min(self._credit_s + SMALL_SHARE * seconds, seconds)
        share_s = min(SMALL_SHARE, 1 / max(1, num_tenants)) * seconds
        self._credit_of = {
            tenant: credit_s + share_s
            for tenant, credit_s in self._credit_of.items()
            if credit_s + share_s < seconds
        }

    def _credit(self, tenant: str) -> float:
        return self._credit_of.get(tenant, self._last_whole_s)

    def _may_try(self) -> bool:
        """Whether to measure a small step again: the known costs may be those of a cold start."""
        is_full = self._credit_s >= self._last_whole_s
        return is_full and self._num_whole >= self._pause


def _has_few(tenant: str, rows: Mapping[str, int]) -> bool:
    return 2 * rows[tenant] * len(rows) <= sum(rows.values())
