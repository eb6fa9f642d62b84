"""How long the engine samples before the scheduler looks for new requests again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.work import Bench
from tinkex.engine.interface import SamplingProgress
from tinkex.engine.null import NullEngine
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.driver import _SAMPLING_S, _SHORT_SAMPLING_S

budgets: list[float] = []


class Noting(NullEngine):
    """Notes for how long it was told to sample."""

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        budgets.append(budget_s)
        return super().step_sampling(budget_s)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, Noting, SchedulerConfig())
    yield bench.start()
    bench.close()


def test_slices_are_short_while_several_tenants_send_work(work: Bench) -> None:
    mine, theirs = work.base_sampler(), work.base_sampler("b")
    budgets.clear()
    work.result(work.sample(mine, 1))
    assert set(budgets) == {_SAMPLING_S}
    work.result(work.sample(theirs, 1, owner="b"), "b")
    budgets.clear()
    work.result(work.sample(mine, 2))
    assert set(budgets) == {_SHORT_SAMPLING_S}
