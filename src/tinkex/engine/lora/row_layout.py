"""The order of sequences in a sampling step, chosen so that the rows of an adapter are adjacent.

Adapters of one layout and scale with about equally many rows each are stacked: every one gets the
same number of rows, some of them empty. Knows nothing of tokens or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tinkex.engine.lora.adapter import AdapterWeights
from tinkex.engine.lora.rows import Run, StackedRun, pair_views
from tinkex.engine.lora.stack import AdapterStack

__all__ = ["RowPlan", "RowPlanner"]

_MAY_WASTE = 1.3
_MOST_STACKS = 2


@dataclass(slots=True)
class RowPlan:
    """The sequence of each row, as an index into the given ones; None is an empty row."""

    order: list[int | None] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    stacked: list[StackedRun] = field(default_factory=list)


class RowPlanner:
    """Plans steps of one base model; adapters that share steps stay adjacent in memory."""

    def __init__(self, stack_bytes: int, like: Tensor) -> None:
        self._stack_bytes, self._like = stack_bytes // _MOST_STACKS, like
        self._stacks: dict[object, AdapterStack] = {}

    def clear(self) -> None:
        """Frees the stacked copies of adapters."""
        self._stacks.clear()

    def plan(self, weights: Sequence[AdapterWeights | None]) -> RowPlan:
        """Returns the rows of sequences with these weights."""
        rows_of: dict[int, list[int]] = {}
        adapters: dict[object, dict[int, AdapterWeights]] = {}
        plan = RowPlan()
        for row, each in enumerate(weights):
            if each is None:
                plan.order.append(row)
                continue
            rows_of.setdefault(each.identity, []).append(row)
            layout = each.layout
            # A stack is multiplied with one scale, so adapters of another alpha get their own.
            kind = (layout.rank, layout.scale, tuple(group.site for group in layout.groups))
            adapters.setdefault(kind, {})[each.identity] = each
        for alike, found in adapters.items():
            groups = [(each, rows_of[each.identity]) for each in found.values()]
            if len(groups) == 1 or not self._stack(plan, alike, groups):
                for each, rows in groups:
                    self._append_run(plan, each, rows)
        return plan

    def _append_run(self, plan: RowPlan, weights: AdapterWeights, rows: list[int]) -> None:
        start = len(plan.order)
        plan.order += rows
        pairs = pair_views(weights, self._like.dtype)
        plan.runs.append(Run(start, len(plan.order), pairs))

    def _stack(
        self, plan: RowPlan, alike: object, groups: list[tuple[AdapterWeights, list[int]]]
    ) -> bool:
        """Adds the groups as one batched product; returns False if that would not pay."""
        height = max(len(rows) for _, rows in groups)
        num_rows = sum(len(rows) for _, rows in groups)
        if height * len(groups) > _MAY_WASTE * num_rows + 1:
            return False
        places = self._stack_for(alike, groups[0][0]).place([each for each, _ in groups])
        if places is None:
            return False
        first, last = min(places), max(places)
        if height * (last - first + 1) > _MAY_WASTE * num_rows + 1:
            return False
        rows_at = dict(zip(places, (rows for _, rows in groups), strict=True))
        start = len(plan.order)
        for place in range(first, last + 1):
            rows = rows_at.get(place, [])
            plan.order += [*rows, *[None] * (height - len(rows))]
        pairs = self._stacks[alike].pairs(first, last)
        plan.stacked.append(StackedRun(start, len(plan.order), last - first + 1, pairs))
        return True

    def _stack_for(self, alike: object, weights: AdapterWeights) -> AdapterStack:
        if alike not in self._stacks:
            if len(self._stacks) >= _MOST_STACKS:
                del self._stacks[next(iter(self._stacks))]
            self._stacks[alike] = AdapterStack(weights.layout, self._stack_bytes, self._like)
        return self._stacks[alike]
