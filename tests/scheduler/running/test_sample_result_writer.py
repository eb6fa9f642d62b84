"""Results of sampling are kept beside the engine's work, told only once kept, and none is lost."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.scheduler.work import Bench
from tests.support.waiting import wait_until
from tinkex.engine.interface import SamplingProgress
from tinkex.engine.null import NullEngine
from tinkex.store import results, samples
from tinkex.store.results import Result
from tinkex.store.samples import Sample
from tinkex.store.usage_sums import Spent


class _Slow:
    """Holds up every write of the store that comes after `hold` until `let_go`."""

    def __init__(self, bench: Bench) -> None:
        self._gate = threading.Event()
        self._bench = bench

    def hold(self) -> None:
        self._bench.db.submit(lambda _conn: self._gate.wait(10))

    def let_go(self) -> None:
        self._gate.set()


def test_the_engine_goes_on_while_results_are_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda: NullEngine(delay_s=0.3)).start()
    session = bench.base_sampler()
    bench.result(bench.sample(session, 0))
    ids = [bench.sample(session, n) for n in range(1, 4)]
    slow = _Slow(bench)
    slow.hold()
    deadline = time.monotonic() + 10
    while bench.scheduler.pending_samples() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bench.scheduler.pending_samples() == 0, "the engine is done with all of them"
    for request_id in ids:
        found = bench.db.read(results.find, "a", request_id)
        assert found is not None
        assert found.result is None
        assert request_id not in bench.order, "and no waiter is woken before it is on disk"
    slow.let_go()
    for request_id in ids:
        assert bench.result(request_id).encoding == "proto"
    bench.close()


class _OneByOne(NullEngine):
    """Finishes one request in a step, so that each comes in a batch of its own, once `may_go`."""

    may_go = threading.Event()

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        self.may_go.wait(10)
        with self._lock:
            waiting = list(self._queue.items())
            self._queue = OrderedDict(waiting[:1])
        progress = super().step_sampling(budget_s)
        with self._lock:
            self._queue = OrderedDict([*waiting[1:], *self._queue.items()])
        return progress


def test_results_that_came_while_others_were_written_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a commit for each of their batches the last would wait for all before it."""
    sizes: list[int] = []
    finish = samples.finish

    def noting(
        conn: Connection, outcomes: list[tuple[Sample, Result]], spent: Mapping[str, Spent]
    ) -> None:
        sizes.append(len(outcomes))
        finish(conn, outcomes, spent)

    monkeypatch.setattr(samples, "finish", noting)
    bench = Bench(tmp_path, _OneByOne).start()
    session = bench.base_sampler()
    ids = [bench.sample(session, n) for n in range(7)]
    slow = _Slow(bench)
    slow.hold()
    _OneByOne.may_go.set()
    wait_until(lambda: not bench.scheduler.pending_samples())
    slow.let_go()
    for request_id in ids:
        assert bench.result(request_id).encoding == "proto"
    bench.close()
    assert sum(sizes) == 7
    assert len(sizes) <= 3, "what was being written, what came meanwhile, and maybe a late one"


def test_a_clean_end_keeps_what_was_computed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NullEngine).start()
    session = bench.base_sampler()
    ids = [bench.sample(session, n) for n in range(30)]
    while bench.scheduler.pending_samples():
        time.sleep(0.01)
    bench.scheduler.stop()
    for request_id in ids:
        found = bench.db.read(results.find, "a", request_id)
        assert found is not None
        assert found.result is not None
    bench.db.close()
