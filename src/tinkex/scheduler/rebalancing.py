"""When a model should move to another engine slot, and which one.

Pure. A slot requests a model in three cases, all measured against what a move costs: it has nothing
to do while much waits at another slot; it has had nothing to do for long while another works all
the time for several models; or all its work is of tenants that had more engine time than a tenant
that waits elsewhere. A model whose move would only take the idle time along stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tinkex.scheduler.queues.planner import ReadyModel
from tinkex.scheduler.slot_load import BUSY_SHARE

__all__ = [
    "TIMES_COST",
    "SlotWork",
    "least_ahead_s",
    "model_for_fairness",
    "model_for_idle",
    "overworked",
]

TIMES_COST = 3.0
"""A model moves when as many times the cost of the move would otherwise be lost."""


_MIN_AHEAD_S = 1.0
"""Tenants that are nearer to each other than that have equal shares: a batch can take as long."""


class SlotWork(msgspec.Struct, kw_only=True):
    """What one slot has to do."""

    busy: float  # share of the last seconds
    ready: list[ReadyModel]
    is_computing: bool  # a training batch
    backlog_s: float = 0.0  # expected time of what waits
    active: list[str] = []  # models that ran in the last seconds

    @property
    def spare(self) -> list[ReadyModel]:
        """Models that wait while the slot has others to work for."""
        has_others = self.is_computing or len(self.ready) > 1
        return [each for each in self.ready if has_others and not each.is_running]


def model_for_idle(others: Sequence[SlotWork], cost_s: float) -> str | None:
    """The model that a slot without work should get: one that waits at the slot with the largest
    backlog, if that is worth a move."""
    for work in sorted(others, key=lambda each: -each.backlog_s):
        if work.backlog_s <= TIMES_COST * cost_s:
            break
        if work.spare:
            return max(work.spare, key=lambda each: each.num_tokens).model_id
    return None


def overworked(others: Sequence[SlotWork]) -> str | None:
    """A model of a slot that works all the time for several; a slot that idles meanwhile for
    `TIMES_COST` the cost of a move should get it."""
    for work in sorted(others, key=lambda each: -each.busy):
        if work.busy >= BUSY_SHARE and len(work.active) > 1:
            return work.active[0]
    return None


def least_ahead_s(cost_s: float) -> float:
    """A model moves for fairness only if tenants differ by more engine time than this."""
    return max(_MIN_AHEAD_S, TIMES_COST * cost_s)


def model_for_fairness(
    mine: Sequence[ReadyModel], others: Sequence[SlotWork], cost_s: float
) -> str | None:
    """A waiting model of the tenant with the least engine time, if all tenants that this slot
    could serve are ahead of it by more than a move is worth."""
    waiting = [each for work in others for each in work.spare]
    if not mine or not waiting:
        return None
    behind = min(waiting, key=lambda each: (each.used_s, -each.num_tokens))
    ahead_s = min(each.used_s for each in mine) - behind.used_s
    return behind.model_id if ahead_s > least_ahead_s(cost_s) else None
