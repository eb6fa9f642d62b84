"""Results of sampling are kept beside the engine's work, told only once kept, and none is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.scheduler.work import Bench
from tinkex.engine.null import NullEngine
from tinkex.store import results


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
