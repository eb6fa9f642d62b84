"""When a batch waits for others to join it, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.work import Bench
from tinkex.engine.interface import RequestError, TrainRequest, TrainResult
from tinkex.engine.null import NullEngine
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.queues.batch_wait import BatchWaitPolicy


def _known(*models: str, seconds: float = 1.0, now: float = 0.0) -> BatchWaitPolicy:
    """BatchWaitPolicy of models that have just trained 100 tokens each."""
    policy = BatchWaitPolicy()
    policy.trained(dict.fromkeys(models, 100), seconds, now)
    return policy


def test_those_who_trained_a_moment_ago_are_waited_for() -> None:
    policy = _known("a", "b")
    assert policy.is_worth_a_wait({"a": 100}, 1.0)
    assert not policy.is_worth_a_wait({"a": 100, "b": 1}, 1.0)
    assert not policy.is_worth_a_wait({"a": 100, "b": 1, "c": 1}, 1.0)
    assert not policy.is_worth_a_wait({}, 1.0)
    assert not policy.is_worth_a_wait({"a": 100}, 11.0), "b trains no more"


def test_a_single_model_never_waits() -> None:
    assert not BatchWaitPolicy().is_worth_a_wait({"a": 100}, 0.0)
    assert not _known("a").is_worth_a_wait({"a": 100}, 1.0)


def test_the_longest_wait_is_a_small_share_of_the_work() -> None:
    policy = _known("a", "b", seconds=2.0)  # ten milliseconds a token
    assert policy.patience_s({"a": 10}) == pytest.approx(0.004)
    assert policy.patience_s({"a": 10, "c": 10}) == pytest.approx(0.008)
    assert policy.patience_s({"a": 10_000}) == pytest.approx(0.04)
    assert BatchWaitPolicy().patience_s({"a": 10_000}) == 0.0


def test_one_slow_batch_does_not_lengthen_the_wait() -> None:
    policy = _known("a", "b", seconds=0.2)  # a millisecond a token
    policy.trained({"a": 16}, 5.0, 1.0)  # an adapter came back from the disk
    assert policy.patience_s({"a": 100}) == pytest.approx(0.004)


def test_fruitless_waits_become_rare_and_a_shared_batch_makes_them_usual_again() -> None:
    policy = _known("a", "b")

    def num_waits(count: int) -> int:
        waits = 0
        for _ in range(count):
            if policy.is_worth_a_wait({"a": 1}, 1.0):
                waits += 1
                policy.waited(has_come=False)
        return waits

    assert num_waits(1 + 1 + 2 + 4 + 8 + 16) == 6
    assert num_waits(320) == 10
    policy.waited(has_come=True)
    assert policy.is_worth_a_wait({"a": 1}, 1.0)


def test_who_comes_right_after_a_batch_has_begun_is_waited_for_again() -> None:
    policy = _known("a", "b", "c", seconds=3.0)  # ten milliseconds a token
    for _ in range(9):
        policy.waited(has_come=False)
    batch = {"a": 50}  # which may wait for 20 ms
    policy.began(batch, 100.0, {"b": 100.03, "stranger": 100.001})
    assert not policy.is_worth_a_wait(batch, 1.0)
    policy.began(batch, 100.0, {"b": 100.03, "c": 100.01})
    assert policy.is_worth_a_wait(batch, 1.0)


class _Recording(NullEngine):
    """Notes how many requests came in each batch."""

    sizes: list[int]

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        self.sizes.append(len(batch))
        return super().forward_backward(batch)


@pytest.fixture
def sizes() -> Iterator[list[int]]:
    _Recording.sizes = []
    yield _Recording.sizes
    del _Recording.sizes


def _trained(folder: Path, config: SchedulerConfig) -> tuple[Bench, list[str]]:
    """A bench with two models that have just trained."""
    bench = Bench(folder, _Recording, config).start()
    models = [bench.model() for _ in range(2)]
    for model in models:
        bench.result(bench.train(model, 1))
    return bench, models


def _patient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, list[str]]:
    """The same, and a batch that may wait does so for a minute from now on."""
    monkeypatch.setattr(BatchWaitPolicy, "patience_s", lambda *_: 0.0)
    trained = _trained(folder, SchedulerConfig())
    monkeypatch.setattr(BatchWaitPolicy, "patience_s", lambda *_: 60.0)
    monkeypatch.setattr(BatchWaitPolicy, "is_worth_a_wait", BatchWaitPolicy.is_missed)
    return trained


def test_a_batch_begins_when_the_last_of_those_who_train_has_come(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, (one, other) = _patient(tmp_path, monkeypatch)
    sizes.clear()
    first = bench.train(one, 2)
    second = bench.train(other, 2)
    bench.result(first)
    bench.result(second)
    assert sizes == [2]
    third = bench.train(one, 3)
    assert bench.scheduler._planner.forward_heads() == ("null", {one: 10}), "it waits"
    fourth = bench.train(other, 3)
    bench.result(third)
    bench.result(fourth)
    assert sizes == [2, 2]
    bench.close()


def test_no_batch_waits_while_there_is_other_work(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, (one, other) = _patient(tmp_path, monkeypatch)
    waits = bench.train(one, 2)
    step = bench.step(other, 2)  # this thread is the one that would run it
    bench.result(step)
    bench.result(bench.sample(bench.base_sampler(), 0))
    bench.result(waits)
    assert sizes == [1, 1, 1]
    bench.close()


def test_a_deterministic_server_never_waits(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchWaitPolicy, "patience_s", lambda *_: 60.0)
    bench, (one, _) = _trained(tmp_path, SchedulerConfig(is_deterministic=True))
    bench.result(bench.train(one, 2))
    assert sizes == [1, 1, 1]
    bench.close()
