"""The engine's process dies alone: by poison, for lack of memory, by the system's hand.

Real processes and real deaths. A request for too much gets a server error after one more try;
all others, of any tenant and in any batch, get a result.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.weak_workers import POISON
from tests.scheduler.work import Bench
from tests.server.driving import training_body
from tinkex.engine.interface import Engine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess

LARGE = 30_000


class Engines:
    """Starts weak engines and remembers them."""

    def __init__(self, kind: str) -> None:
        self._options = EngineOptions(models={"null": kind}, device="null")
        self.started: list[EngineProcess] = []

    def __call__(self) -> Engine:
        self.started.append(EngineProcess(self._options, worker="tests.faults.weak_workers"))
        return self.started[-1]


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for each in made:
        each.close()


def bench(benches: list[Bench], tmp_path: Path, engines: Engines) -> Bench:
    benches.append(Bench(tmp_path, engines))
    return benches[-1]


def batch_with(work: Bench, bad_body: bytes, bad_model: str, theirs: str) -> tuple[str, list[str]]:
    """A bad request of one tenant, and good ones of another to share its batch."""
    bad = work.submit(bad_model, 1, "forward_backward", bad_body)
    return bad, [work.train(theirs, n, "b") for n in range(1, 4)]


def assert_alone(work: Bench, bad: str, good: list[str], mine: str, theirs: str) -> None:
    """The bad request failed as the server's trouble; both tenants go on as if it had not been."""
    failed = work.answer(bad)
    assert failed["category"] == "server", failed
    assert [work.result(each, "b").encoding for each in good] == ["proto"] * 3
    norm = work.answer(work.step(theirs, 4, "b"), "b")["metrics"]["grad_norm"]
    work.train(mine, 2)
    assert work.answer(work.step(mine, 3))["metrics"]["grad_norm"] > 0
    reference = work.model()
    for n in range(1, 4):
        work.train(reference, n)
    assert work.answer(work.step(reference, 4))["metrics"]["grad_norm"] == norm


def test_poison_in_a_shared_batch(benches: list[Bench], tmp_path: Path) -> None:
    engines = Engines("poisoned")
    work = bench(benches, tmp_path, engines)
    mine, theirs = work.model(), work.model("b")
    body = training_body(mine, 1, first=POISON)
    bad, good = batch_with(work, body, mine, theirs)
    session = work.base_sampler("b")
    samples = [work.sample(session, n, "b", seed=n) for n in range(4)]
    worse = work.sample(work.base_sampler(), 0, prompt=(POISON,))
    work.start()
    assert_alone(work, bad, good, mine, theirs)
    failed = work.answer(worse)
    assert (failed["category"], failed["code"]) == ("server", "engine-died")
    assert all(work.result(each, "b").encoding == "proto" for each in samples)
    codes = {engine._process.poll() for engine in engines.started[:-1]}
    assert codes == {-signal.SIGSEGV}
    assert engines.started[-1].is_alive


def test_no_memory_for_a_large_request(benches: list[Bench], tmp_path: Path) -> None:
    engines = Engines("small")
    work = bench(benches, tmp_path, engines)
    mine, theirs = work.model(), work.model("b")
    body = training_body(mine, 1, tokens=LARGE, copies=80)
    bad, good = batch_with(work, body, mine, theirs)
    work.start()
    assert_alone(work, bad, good, mine, theirs)


def test_the_system_kills_the_process_that_takes_too_much(
    benches: list[Bench], tmp_path: Path
) -> None:
    engines = Engines("hungry")
    work = bench(benches, tmp_path, engines)
    mine, theirs = work.model(), work.model("b")
    body = training_body(mine, 1, tokens=LARGE)
    bad, good = batch_with(work, body, mine, theirs)
    with out_of_memory_killer(engines, 200 * 2**20) as killed:
        work.start()
        assert_alone(work, bad, good, mine, theirs)
    assert len(killed) == 2, "in the batch, and alone"


class out_of_memory_killer:
    """Kills an engine that has grown by more than so many bytes, as a system short of memory."""

    def __init__(self, engines: Engines, most: int) -> None:
        self._engines, self._most = engines, most
        self._killed: list[int] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> list[int]:
        self._thread.start()
        return self._killed

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        first: dict[int, int] = {}
        while not self._is_over.wait(0.01):
            for engine in list(self._engines.started):
                try:
                    size = psutil.Process(engine.pid).memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                if size - first.setdefault(engine.pid, size) > self._most:
                    os.kill(engine.pid, signal.SIGKILL)
                    self._killed.append(engine.pid)
                    time.sleep(0.1)
                    first.pop(engine.pid)
