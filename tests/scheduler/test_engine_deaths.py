"""The engine fails alone: the request that made it fail gets an error, all others get a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scheduler.faulty import POISON, Hanging, Poisonable, ShortOfMemory
from tests.scheduler.work import Bench
from tests.server.driving import training_body
from tinkex.engine.interface import Engine, EngineFailure, EngineUserError
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.supervisor import EngineState, Supervisor
from tinkex.store.samples import Sample

Make = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Make]:
    made: list[Bench] = []

    def make(engine: Callable[[], Engine], **config: object) -> Bench:
        made.append(Bench(tmp_path, engine, SchedulerConfig(**config)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def poison(work: Bench, model: str, seq_id: int) -> str:
    """A forward_backward no engine survives."""
    body = training_body(model, seq_id, first=POISON)
    return work.submit(model, seq_id, "forward_backward", body)


def fresh() -> type[Poisonable]:
    """An engine class with a count of deaths of its own."""
    return type("Counted", (Poisonable,), {})


def test_a_poisonous_training_request_fails_alone_though_it_shares_a_batch(bench: Make) -> None:
    engine = fresh()
    work = bench(engine)
    model, other = work.model(), work.model("b")
    bad = poison(work, model, 1)
    good = [work.train(other, n, "b") for n in (1, 2)]
    after = work.train(model, 2)
    work.start()
    assert work.answer(bad)["category"] == "server"
    assert [work.result(each, "b").encoding for each in good] == ["proto", "proto"]
    assert work.result(after).encoding == "proto"
    assert engine.deaths == 2, "once in the batch, once alone"
    norm = work.answer(work.step(model, 3))["metrics"]["grad_norm"]
    reference = work.model()
    work.train(reference, 1)
    assert work.answer(work.step(reference, 2))["metrics"]["grad_norm"] == norm


@pytest.mark.parametrize(("innocent", "deaths"), [(0, 2), (9, 2), (63, 3)])
def test_a_poisonous_sample_fails_alone_though_it_shares_a_batch(
    bench: Make, innocent: int, deaths: int
) -> None:
    engine = fresh()
    work = bench(engine)
    mine, theirs = work.base_sampler(), work.base_sampler("b")
    good = [work.sample(theirs, n, "b", seed=n) for n in range(innocent)]
    bad = work.sample(mine, 0, prompt=(1, POISON))
    work.start()
    failed = work.answer(bad)
    assert (failed["category"], failed["code"]) == ("server", "engine-died")
    assert all(work.result(each, "b").encoding == "proto" for each in good)
    assert engine.deaths == deaths
    assert work.result(work.sample(mine, 1)).encoding == "proto"


def test_a_sample_short_of_memory_fails_alone(bench: Make) -> None:
    work = bench(ShortOfMemory)
    session = work.base_sampler()
    good = [work.sample(session, n, seed=n) for n in range(5)]
    bad = work.sample(session, 5, prompt=(POISON,))
    work.start()
    assert work.answer(bad)["category"] == "server"
    assert all(work.result(each).encoding == "proto" for each in good)


def test_samples_in_flight_survive_an_engine_that_training_killed(bench: Make) -> None:
    engine = fresh()
    engine.steps_needed = 200
    work = bench(engine).start()
    model, session = work.model(), work.base_sampler()
    ids = [work.sample(session, n, seed=n) for n in range(4)]
    assert work.answer(poison(work, model, 1))["category"] == "server"
    assert all(work.result(each).encoding == "proto" for each in ids)


def test_an_engine_that_does_not_start_again_at_once_fails_no_request(bench: Make) -> None:
    engine = fresh()
    refusals: list[Exception] = []

    def factory() -> Engine:
        if engine.deaths and len(refusals) < 3:
            kinds = (EngineFailure("died while loading"), OSError(12, "no memory"))
            error = EngineUserError("unreadable", code="no-model")
            refusals.append((*kinds, error)[len(refusals)])
            raise refusals[-1]
        return engine()

    work = bench(factory).start()
    model, other = work.model(), work.model()
    work.train(other, 1)
    assert work.answer(poison(work, model, 1))["category"] == "server"
    assert work.result(work.train(other, 2)).encoding == "proto"
    assert len(refusals) == 3


def test_a_death_while_idle_counts_against_no_request(bench: Make) -> None:
    started: list[Poisonable] = []

    def factory() -> Engine:
        started.append(Poisonable())
        return started[-1]

    work = bench(factory).start()
    model, session = work.model(), work.base_sampler()
    assert work.answer(work.step(model, 1))["metrics"]
    started[-1].is_gone = True
    assert work.result(work.train(model, 2)).encoding == "proto"
    started[-1].is_gone = True
    assert work.result(work.sample(session, 0)).encoding == "proto"
    assert len(started) == 3
    assert not work.scheduler._sample_queue._slots[0].quarantine


FROM_OUTSIDE = pytest.mark.parametrize("code", ["engine-hung", "engine-disconnected"])


def hanging(times: int, code: str) -> type[Hanging]:
    """An engine class that is lost so many times, with a count of its own."""
    return type("Counted", (Hanging,), {"hangs_left": times, "death_code": code})


@FROM_OUTSIDE
def test_a_loss_from_outside_in_training_runs_the_batch_again_as_it_was(
    bench: Make, code: str
) -> None:
    engine = hanging(2, code)
    work = bench(engine)
    model, other = work.model(), work.model("b")
    good = [work.train(model, 1), work.train(model, 2)]
    theirs = work.train(other, 1, "b")
    work.start()
    assert [work.result(each).encoding for each in good] == ["proto", "proto"]
    assert work.result(theirs, "b").encoding == "proto"
    assert engine.deaths == 2, "and was not tried apart"


@FROM_OUTSIDE
def test_a_loss_from_outside_in_sampling_blames_no_request(bench: Make, code: str) -> None:
    engine = hanging(2, code)
    work = bench(engine)
    session = work.base_sampler()
    ids = [work.sample(session, n, seed=n) for n in range(9)]
    blamed: list[int] = []
    sample_queue = work.scheduler._sample_queue
    sample_queue.quarantine = lambda requests, _slot: blamed.append(len(requests))  # type: ignore[method-assign]
    work.start()
    assert all(work.result(each).encoding == "proto" for each in ids)
    assert engine.deaths == 2
    assert blamed == []


@FROM_OUTSIDE
def test_a_request_over_which_the_engine_is_always_lost_ends(bench: Make, code: str) -> None:
    engine = hanging(0, code)
    work = bench(engine)
    model, other, session = work.model(), work.model("b"), work.base_sampler("b")
    bad, good = poison(work, model, 1), work.train(other, 1, "b")
    worse, fine = work.sample(session, 0, "b", prompt=(1, POISON)), work.sample(session, 1, "b")
    work.start()
    for request, owner in ((bad, "a"), (worse, "b")):
        failed = work.answer(request, owner)
        assert (failed["category"], failed["code"]) == ("server", code)
    assert work.result(good, "b").encoding == work.result(fine, "b").encoding == "proto"
    assert engine.deaths == 4 + 4, "three times as it was, and once more"


def test_the_state_of_the_engine_is_reported() -> None:
    states: list[str] = []

    def factory() -> Engine:
        states.append(supervisor.state().state)
        return Hanging()

    supervisor = Supervisor(factory)
    engine = supervisor.engine
    states.append(supervisor.state().state)
    engine.silent_seconds = 12.0  # type: ignore[attr-defined]
    assert supervisor.state() == EngineState(state="not_responding", since_s=12.0)
    engine.is_gone = True  # type: ignore[attr-defined]
    states.append(supervisor.state().state)
    assert supervisor.is_down
    supervisor.revive()
    states.append(supervisor.state().state)
    assert states == ["starting", "ready", "restarting", "restarting", "ready"]
    supervisor.close()


def test_suspects_run_apart_and_alone_after_a_second_failure() -> None:
    sample_queue = SampleQueue(max_running=256)

    def waiting(number: int, failures: int) -> QueuedSample:
        sample = Sample(
            request_id=str(number),
            owner="a",
            sampling_session_id="s",
            seq_id=number,
            num_samples=1,
            cost=1,
            state="queued",
            created_at=0.0,
        )
        return QueuedSample(sample=sample, failures=failures)

    def run(sample_queue: SampleQueue) -> list[str]:
        taken = [each.sample.request_id for each in sample_queue.take(0)]
        for each in taken:
            sample_queue.finish(each, 0)
        return taken

    sample_queue.quarantine([waiting(n, 1) for n in range(40)], 0)
    sample_queue.add(waiting(99, 0))
    assert sample_queue.total() == sample_queue.pending("a") == 41
    wave = sample_queue.take(0)
    assert len(wave) == 3
    assert sample_queue.take(0) == [], "no other joins them"
    sample_queue.quarantine(
        [waiting(int(each.sample.request_id), 2) for each in sample_queue.interrupt(0)], 0
    )
    assert sample_queue.cancel("39", "b") is None
    assert sample_queue.cancel("39", "a") is not None
    sizes = []
    while (taken := run(sample_queue)) != ["99"]:
        sizes.append(len(taken))
    assert sizes == [3] * 12 + [1] * 3
    assert sample_queue.total() == 0
