"""Several engines: every model on one of them, samples on all, and one's death is its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.work import Bench
from tests.support.waiting import wait_until
from tinkex.engine.interface import (
    Engine,
    EngineFailure,
    OptimRequest,
    OptimResult,
    RequestError,
    SampleRequest,
    SamplingProgress,
    StateScope,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.null import NullEngine
from tinkex.files.errors import StorageError
from tinkex.scheduler import SchedulerConfig
from tinkex.store import models
from tinkex.wire import protobuf

POISON = 99
"""A token that kills an engine which samples with it."""


class Watched(NullEngine):
    """A null engine that remembers what it was given, and can be killed."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(delay_s=slot.delay_s)
        self._slot = slot

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        self._check()
        self._slot.trained += [each.adapter_id for each in batch]
        found = super().forward_backward(batch)
        self._check()  # killed while it computed
        return found

    def optim_step(self, batch: list[OptimRequest]) -> list[OptimResult | RequestError]:
        self._check()
        return super().optim_step(batch)

    def submit_samples(self, batch: list[SampleRequest]) -> list[RequestError | None]:
        self._check()
        self._slot.submitted += [each.request_id for each in batch]
        return super().submit_samples(batch)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        self._check()
        if any(POISON in each.tokens for each in self._queue.values()):
            self._slot.kill()
        self._check()
        if self._slot.holds_samples.is_set():
            time.sleep(0.005)
            return SamplingProgress(finished=[], running=len(self._queue), waiting=0)
        return super().step_sampling(budget_s)

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        self._check()
        write = self._written(adapter_id, folder, scope)

        def save() -> int:
            if self._slot.has_bad_disk:
                raise StorageError("The disk is full.", code="disk-full")
            staging = folder.parent / f".{folder.name}.test.new"
            staging.mkdir()
            self._slot.stagings.append(staging)
            self._slot.is_saving.set()
            assert self._slot.may_save.wait(20)
            if self.is_gone:
                raise EngineFailure("killed while it was writing", code="engine-died")
            self._slot.staging_was_there.append(staging.exists())
            staging.rmdir()
            return write()

        return self._background.start(save)

    def _check(self) -> None:
        if self.is_gone:
            raise EngineFailure("killed", code="engine-died")


class Slot:
    """The engines of one slot, one after the other."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.engines: list[Watched] = []
        self.trained: list[str] = []
        self.submitted: list[str] = []
        self.holds_samples = threading.Event()
        self.has_bad_disk = False
        self.is_saving = threading.Event()
        self.may_save = threading.Event()
        self.may_save.set()
        self.stagings: list[Path] = []  # of each write
        self.staging_was_there: list[bool] = []  # at the end of each write

    def __call__(self) -> Engine:
        self.engines.append(Watched(self))
        return self.engines[-1]

    def kill(self) -> None:
        """As `kill -9`: what it computes is lost."""
        self.engines[-1].is_gone = True


Make = Callable[..., Bench]


@pytest.fixture
def slots() -> list[Slot]:
    return [Slot(), Slot()]


@pytest.fixture
def bench(tmp_path: Path, slots: list[Slot]) -> Iterator[Make]:
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench(tmp_path, slots[0], SchedulerConfig(**config), *slots[1:]))
        made[-1].scheduler.workers._placement.cost.record(1e6)  # no move is worth that
        return made[-1].start()

    yield make
    for slot in slots:
        slot.may_save.set()
        slot.holds_samples.clear()
    for each in made:
        each.close()


def model_on(work: Bench, slot_id: int, owner: str = "a") -> str:
    """A new model on this slot."""
    loads = work.scheduler.workers._placement.loads
    before = [load.is_up for load in loads]
    for number, load in enumerate(loads):
        if number != slot_id:
            load.is_up = lambda: False
    assert work.scheduler.wait_ready(20)
    model = work.model(owner)
    wait_until(lambda: work.scheduler.workers._placement.slot_of(model) == slot_id)
    for load, is_up in zip(loads, before, strict=True):
        load.is_up = is_up
    return model


def run(work: Bench, model: str, steps: int, start: int = 1) -> list[Any]:
    """The metrics of some steps, each of two forward_backwards and an optimizer step."""
    requests = []
    for number in range(start, start + 3 * steps, 3):
        work.train(model, number)
        work.train(model, number + 1)
        requests.append(work.step(model, number + 2))
    return [work.answer(each)["metrics"] for each in requests]


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    """What four steps give on one engine without any trouble."""
    folder = tmp_path / "quiet"
    folder.mkdir()
    quiet = Bench(folder, NullEngine).start()
    found = run(quiet, quiet.model(), 4)
    quiet.close()
    return found


def in_parallel(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What the jobs return, run in threads of their own."""
    found: list[Any] = [None] * len(jobs)

    def call(index: int) -> None:
        found[index] = jobs[index]()

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(jobs))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def test_models_run_on_both_engines_and_each_on_one(
    bench: Make, slots: list[Slot], expected: list[Any]
) -> None:
    work = bench()
    model_ids = [model_on(work, n % 2, owner) for n, owner in enumerate("aaaabbbb")]
    owners = dict(zip(model_ids, "aaaabbbb", strict=True))
    ids: dict[str, list[str]] = {each: [] for each in model_ids}
    for step in range(4):
        for model in model_ids:
            for number in (1, 2):
                ids[model].append(work.train(model, 3 * step + number, owners[model]))
            ids[model].append(work.step(model, 3 * step + 3, owners[model]))
    for model in model_ids:
        norms = [work.answer(each, owners[model])["metrics"] for each in ids[model][2::3]]
        assert norms == expected
        mine = ids[model]
        wait_until(lambda mine=mine: set(mine) <= set(work.order))
        assert [each for each in work.order if each in mine] == mine, "in order"
    trained = [set(slot.trained) for slot in slots]
    assert [len(each) for each in trained] == [4, 4]
    assert not trained[0] & trained[1]


def test_the_death_of_one_engine_is_not_seen_and_leaves_the_other_alone(
    bench: Make, slots: list[Slot], expected: list[Any]
) -> None:
    slots[0].delay_s = slots[1].delay_s = 0.005
    work = bench(snapshot_after_operations=5)
    model_ids = [model_on(work, n % 2) for n in range(6)]
    results: list[list[Any]] = [[] for _ in model_ids]
    for start in (1, 7):
        slots[0].trained.clear()
        jobs = [lambda each=each, at=start: run(work, each, 2, at) for each in model_ids]
        running = threading.Thread(target=lambda jobs=jobs: results.append(in_parallel(jobs)))
        running.start()
        wait_until(lambda: len(slots[0].trained) > 4)
        slots[0].kill()
        running.join()
        for found, more in zip(results, results.pop(), strict=True):
            found += more
    assert results == [expected] * 6
    assert len(slots[0].engines) == 3
    assert len(slots[1].engines) == 1
    trained = [set(slot.trained) for slot in slots]
    assert not trained[0] & trained[1], "models stay where they are"
    assert len(slots[1].trained) == 3 * 8, "nothing was computed again on the other engine"


def test_what_one_engine_writes_survives_the_death_of_the_other(
    bench: Make, slots: list[Slot]
) -> None:
    work = bench(snapshot_after_operations=4)
    ids = [model_on(work, n) for n in range(2)]
    for slot in slots:
        slot.may_save.clear()
    for number in range(1, 5):
        for request in [work.train(each, number) for each in ids]:
            work.result(request)
    assert all(slot.is_saving.wait(20) for slot in slots), "both are writing a snapshot"
    lost, kept = slots
    lost.kill()
    lost.may_save.set()
    wait_until(lambda: len(lost.engines) == 2)
    for each in ids:
        work.result(work.train(each, 5))
    assert [slot.stagings[0].exists() for slot in (lost, kept)] == [False, True]
    kept.may_save.set()
    (model,) = set(kept.trained)
    wait_until(lambda: snapshot_seq(work, model) == 4)
    assert kept.staging_was_there == [True]
    assert len(kept.engines) == 1


def snapshot_seq(work: Bench, model_id: str) -> int | None:
    """The operation after which the model's recorded snapshot was taken."""
    model = work.db.read(models.get_any, model_id)
    assert model is not None
    return model.snapshot_seq


def test_samples_run_on_both_engines_and_one_death_interrupts_only_its_own(
    bench: Make, slots: list[Slot]
) -> None:
    work = bench()
    session = work.base_sampler()
    alone = work.result(work.sample(session, 1000, seed=7)).body
    for slot in slots:
        slot.submitted.clear()
        slot.holds_samples.set()
    ids = [work.sample(session, number, seed=7) for number in range(40)]
    wait_until(lambda: len(slots[0].submitted) + len(slots[1].submitted) == 40)
    assert all(slot.submitted for slot in slots)
    others = list(slots[1].submitted)
    slots[1].holds_samples.clear()
    slots[0].kill()
    slots[0].holds_samples.clear()
    assert {work.result(each).body for each in ids} == {alone}
    assert len(slots[1].engines) == 1
    again = slots[1].submitted[len(others) :]
    assert not set(again) & set(others), "what ran there was not interrupted"


def test_a_sample_that_kills_engines_fails_alone_and_on_its_own_worker(
    bench: Make, slots: list[Slot]
) -> None:
    work = bench()
    assert work.scheduler.wait_ready(20)
    session = work.base_sampler()
    for slot in slots:
        slot.holds_samples.set()
    others = [work.sample(session, number) for number in range(30)]
    poisoned = work.sample(session, 100, prompt=(1, POISON))
    for slot in slots:
        slot.holds_samples.clear()
    assert work.result(poisoned).encoding == "error"
    assert {work.result(each).encoding for each in others} == {"proto"}
    deaths = [len(slot.engines) - 1 for slot in slots]
    assert sorted(deaths) == [0, 2], "it is tried twice, both times on the same worker"


def test_a_cancelled_sample_is_cancelled_in_its_own_engine(bench: Make, slots: list[Slot]) -> None:
    work = bench()
    session = work.base_sampler()
    for slot in slots:
        slot.holds_samples.set()
    ids = [work.sample(session, number) for number in range(40)]
    wait_until(lambda: len(slots[0].submitted) + len(slots[1].submitted) == 40)
    for slot in slots:
        assert work.scheduler.sample_cancelling.cancel("a", slot.submitted[0])
        assert slot.submitted[0] not in slot.engines[0]._queue
        assert all(each in slot.engines[0]._queue for each in slot.submitted[1:])
        slot.holds_samples.clear()
    codes = [work.result(each).encoding for each in ids]
    assert sorted(codes) == ["error"] * 2 + ["proto"] * 38


def test_a_sampler_that_is_not_on_disk_is_sampled_where_its_model_is(
    bench: Make, slots: list[Slot]
) -> None:
    work = bench(snapshot_after_s=1000)
    model = work.model()
    work.result(work.train(model, 1))
    work.result(work.step(model, 2))
    (mine,) = [slot for slot in slots if model in slot.trained]
    mine.has_bad_disk = True
    session = work.answer(work.save_ephemeral(model, 3))["sampling_session_id"]
    expected = scores(work, session, 0)
    root = work.scheduler.folders.root / "samplers"
    wait_until(lambda: not list(root.iterdir()))
    found = {scores(work, session, number) for number in range(1, 12)}
    assert found == {expected}
    assert [model in slot.trained for slot in slots] == [slot is mine for slot in slots]


def test_an_evicted_model_may_move_and_goes_on_where_it_was(
    bench: Make, slots: list[Slot], expected: list[Any]
) -> None:
    work = bench(adapter_idle_s=1000)
    model = work.model()
    found = run(work, model, 2)
    (first,) = [index for index, slot in enumerate(slots) if model in slot.trained]
    work.scheduler._slots[first].driver.free(sampler_ids=[], model_ids=[model])
    wait_until(lambda: model not in work.scheduler._slots[first].adapters.cache)
    work.scheduler.workers._placement.loads[first].is_up = lambda: False
    before = len(slots[first].trained)
    found += run(work, model, 2, start=7)
    assert found == expected
    assert model not in slots[first].trained[before:]
    assert model in slots[1 - first].trained


def scores(work: Bench, session: str, seq_id: int) -> bytes:
    """The prompt's logprobs, which depend on the weights."""
    body = work.result(work.sample(session, seq_id)).body
    raw = protobuf.decode_sample_response(body).prompt_logprobs_raw
    assert raw is not None
    return bytes(raw)
