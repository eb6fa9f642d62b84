"""Models that go from one slot to another go on as if they had stayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.test_slots import Slot, model_on, run
from tests.scheduler.work import Bench
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import Engine, EngineFailure, EngineUserError
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.scheduler import SchedulerConfig, model_moves

Make = Callable[..., Bench]


class Stubborn(Slot):
    """A slot whose engine can be kept from starting again."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__(delay_s)
        self.may_start = threading.Event()
        self.may_start.set()

    def __call__(self) -> Engine:
        if not self.may_start.is_set():
            raise EngineFailure("no memory", code="engine-died")
        return super().__call__()


@pytest.fixture
def slots() -> list[Stubborn]:
    return [Stubborn(), Stubborn()]


@pytest.fixture
def bench(tmp_path: Path, slots: list[Stubborn]) -> Iterator[Make]:
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench(tmp_path, slots[0], SchedulerConfig(**config), slots[1]))
        return made[-1].start()

    yield make
    for slot in slots:
        slot.may_start.set()
    for each in made:
        each.close()


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    """What four steps give on one engine without any move."""
    folder = tmp_path / "quiet"
    folder.mkdir()
    quiet = Bench(folder, NullEngine).start()
    found = run(quiet, quiet.model(), 4)
    quiet.close()
    return found


def slot_of(work: Bench, model: str) -> int | None:
    return work.scheduler.workers._placement.slot_of(model)


def test_a_drained_worker_gives_its_models_away_and_they_go_on_as_they_were(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    work = bench()
    model_ids = [model_on(work, 0) for _ in range(3)]
    found = [run(work, model, 2) for model in model_ids]
    work.scheduler.workers.drain(0)
    wait_until(lambda: work.scheduler.workers.list()[0].num_models == 0)
    assert work.scheduler.workers.list()[0].num_adapters == 0
    before = len(slots[0].trained)
    for model, metrics in zip(model_ids, found, strict=True):
        metrics += run(work, model, 2, start=7)
    assert found == [expected] * 3
    assert len(slots[0].trained) == before, "a drained worker takes nothing"
    new = work.model()
    run(work, new, 1)
    assert new in slots[1].trained
    work.scheduler.workers.resume(0)
    work.scheduler.workers.drain(1)
    wait_until(lambda: work.scheduler.workers.list()[1].num_models == 0)
    assert run(work, new, 3, start=4) == expected[1:]
    assert new in slots[0].trained


def test_samples_go_to_the_workers_that_are_not_drained(bench: Make, slots: list[Stubborn]) -> None:
    work = bench()
    assert work.scheduler.wait_ready(20)
    work.scheduler.workers.drain(1)
    session = work.base_sampler()
    for each in [work.sample(session, number) for number in range(40)]:
        assert work.result(each).encoding == "proto"
    assert not slots[1].submitted


def test_the_last_worker_cannot_be_drained(bench: Make) -> None:
    work = bench()
    work.scheduler.workers.drain(1)
    with pytest.raises(EngineUserError, match="worker-0 cannot be drained") as caught:
        work.scheduler.workers.drain(0)
    assert caught.value.code == "last-worker"


def test_a_model_whose_snapshot_cannot_be_written_stays(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    work = bench()
    model = model_on(work, 0)
    found = run(work, model, 2)
    adapters = work.scheduler._slots[0].adapters
    write, adapters.snapshot_writer.write = adapters.snapshot_writer.write, refuse  # type: ignore[method-assign]
    work.scheduler.workers.drain(0)
    load = work.scheduler.workers._placement.loads[0]
    wait_until(lambda: load.keeps_until > 0)
    found += run(work, model, 2, start=7)
    assert found == expected
    assert slot_of(work, model) == 0
    assert model not in slots[1].trained
    adapters.snapshot_writer.write = write  # type: ignore[method-assign]


def refuse(_model_id: str) -> None:
    from tinkex.files.errors import StorageError

    raise StorageError("The disk is full.", code="disk-full")


def test_an_idle_worker_gets_models_that_wait_at_a_busy_one(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    for slot in slots:
        slot.delay_s = 0.01
    work = bench(max_batch_operations=1)
    model_ids = [model_on(work, 0) for _ in range(6)]
    requests = {
        model: [(work.train if number % 3 else work.step)(model, number) for number in range(1, 13)]
        for model in model_ids
    }
    for model in model_ids:
        metrics = [work.answer(each)["metrics"] for each in requests[model][2::3]]
        assert metrics == expected
        mine = requests[model]
        wait_until(lambda mine=mine: set(mine) <= set(work.order))
        assert [each for each in work.order if each in mine] == mine, "in order"
    assert slots[1].trained, "it got some"


def test_the_models_of_a_worker_that_does_not_start_again_go_to_another(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    work = bench()
    model_ids = [model_on(work, 0) for _ in range(2)]
    found = [run(work, model, 2) for model in model_ids]
    slots[0].may_start.clear()
    slots[0].kill()
    wait_until(lambda: work.scheduler.engine_states()[0].state == "restarting")
    for model, metrics in zip(model_ids, found, strict=True):
        metrics += run(work, model, 2, start=7)
    assert found == [expected] * 2
    assert [slot_of(work, model) for model in model_ids] == [1, 1]


def test_the_models_of_a_worker_that_is_down_for_long_are_placed_anew(
    bench: Make, slots: list[Stubborn], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_moves, "_GONE_S", 0.1)
    work = bench()
    work.scheduler.workers._placement.cost.record(1e6)  # no move is worth that
    model = model_on(work, 0)
    found = run(work, model, 2)
    slots[0].may_start.clear()
    slots[0].kill()
    assert found + run(work, model, 2, start=7) == expected
    assert slot_of(work, model) == 1


def test_a_worker_that_does_not_start_again_can_be_drained(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    work = bench()
    work.scheduler.workers._placement.cost.record(1e6)  # no move is worth that
    model = model_on(work, 0)
    found = run(work, model, 2)
    slots[0].may_start.clear()
    slots[0].kill()
    wait_until(lambda: work.scheduler._slots[0].supervisor.starting_s is not None)
    work.scheduler.workers.drain(0)
    assert found + run(work, model, 2, start=7) == expected
    assert slot_of(work, model) == 1


def test_while_a_worker_is_down_tenants_of_another_notice_nothing(
    bench: Make, slots: list[Stubborn], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_moves, "_GONE_S", 1e6)
    work = bench()
    work.scheduler.workers._placement.cost.record(1e6)  # no move is worth that
    struck, spared = model_on(work, 0), model_on(work, 1, "b")
    before = run(work, struck, 2)
    slots[0].may_start.clear()
    slots[0].kill()
    waiting = [work.train(struck, 7), work.train(struck, 8), work.step(struck, 9)]
    session = work.base_sampler("b")
    requests = [
        (work.train if number % 3 else work.step)(spared, number, "b") for number in range(1, 13)
    ]
    assert [work.answer(each, "b")["metrics"] for each in requests[2::3]] == expected
    for number in range(10):
        assert work.result(work.sample(session, number, "b"), "b").encoding == "proto"
    assert len(slots[1].engines) == 1
    assert len(slots[1].trained) == 8, "each operation ran once"
    assert not any(work.is_done(each) for each in waiting)
    slots[0].may_start.set()
    assert work.answer(waiting[2])["metrics"] == expected[2]
    assert before == expected[:2]


def test_a_new_model_goes_to_a_worker_that_has_started(
    bench: Make, slots: list[Stubborn], expected: list[Any]
) -> None:
    slots[0].may_start.clear()
    work = bench()
    wait_until(work.scheduler.is_ready)
    assert not work.scheduler.are_all_ready()
    model = work.model()
    assert run(work, model, 4) == expected
    assert slot_of(work, model) == 1
    slots[0].may_start.set()
    wait_until(work.scheduler.are_all_ready)


def test_with_the_real_engine_a_moved_run_is_bit_identical_to_one_that_stayed(
    tmp_path: Path,
) -> None:
    folder = make_tiny_model(tmp_path / "tiny", "smollm")
    options = EngineOptions(models={"null": str(folder)}, num_threads=2, num_engines=2)

    def results(name: str, *, moves: bool) -> list[Any]:
        (tmp_path / name).mkdir()
        config = SchedulerConfig(is_deterministic=True)
        make = lambda: EngineProcess(options)  # noqa: E731
        work = Bench(tmp_path / name, make, config, make).start()
        assert work.scheduler.wait_ready(45)
        model, found = work.model(), list[Any]()
        for number in range(1, 13):
            request = (work.train if number % 3 else work.step)(model, number)
            found.append(work.result(request, timeout_s=60).body)
            if moves and number % 4 == 1:  # also between a pending gradient and its step
                slot_id = slot_of(work, model)
                assert slot_id is not None
                work.scheduler.workers.resume(1 - slot_id)
                work.scheduler.workers.drain(slot_id)
                wait_until(lambda slot_id=slot_id: slot_of(work, model) != slot_id)
        work.close()
        return found

    assert results("moved", moves=True) == results("stayed", moves=False)
