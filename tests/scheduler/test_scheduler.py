"""The scheduler with the null engine: results, recovery, engine deaths, cancelling."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from tests.scheduler.faulty import Faults
from tests.scheduler.work import Bench
from tests.support.waiting import wait_until
from tinkex.engine.interface import (
    AdapterInfo,
    EngineFailure,
    EngineUserError,
    LoraSpec,
    StateScope,
)
from tinkex.engine.null import NullEngine
from tinkex.scheduler import SchedulerConfig
from tinkex.store import models, operations, samples, sessions
from tinkex.store.operations import NewOperation
from tinkex.store.samples import NewSample
from tinkex.wire import protobuf

Make = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Make]:
    """Makes benches on one folder; all are closed at the end."""
    made: list[Bench] = []

    def make(engine: object = NullEngine, **config: object) -> Bench:
        made.append(Bench(tmp_path, engine, SchedulerConfig(**config)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        if each.scheduler._slots[0].driver._thread.is_alive():
            each.close()
        each.db.close()


def run(bench: Bench, model: str, steps: int, start: int = 1) -> list[object]:
    """The gradient norms of some steps of two forward_backwards each."""
    norms = []
    for number in range(start, start + 3 * steps, 3):
        bench.train(model, number)
        bench.train(model, number + 1)
        norms.append(bench.answer(bench.step(model, number + 2))["metrics"])
    return norms


def scores(bench: Bench, session: str, seq_id: int = 0) -> bytes | None:
    result = bench.result(bench.sample(session, seq_id))
    return protobuf.decode_sample_response(result.body).prompt_logprobs_raw


def test_results_come_in_the_order_of_the_numbers(bench: Make) -> None:
    work = bench().start()
    model = work.model()
    ids = {n: work.train(model, n) for n in (4, 3, 2)}
    ids[1] = work.train(model, 1)
    work.result(ids[4])
    assert [each for each in work.order if each in ids.values()] == [ids[n] for n in (1, 2, 3, 4)]


def test_a_replay_gives_the_same_numbers_as_no_interruption(bench: Make, tmp_path: Path) -> None:
    quiet = Bench(_sub(tmp_path, "quiet"), NullEngine).start()
    expected = run(quiet, quiet.model(), 6)
    quiet.close()
    first = bench(snapshot_after_operations=5).start()
    model = first.model()
    seen = run(first, model, 3)
    first.close()
    second = bench().start()
    assert seen + run(second, model, 3, start=10) == expected


def test_recovery_without_a_snapshot_replays_from_the_creation(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    model = work.model()
    run(work, model, 3)
    faults.left["optim_step"] = 1
    norm = run(work, model, 1, start=10)[0]
    assert len(faults.engines) == 2
    reference = work.model()
    assert run(work, reference, 4)[3] == norm, "the step that died was applied once"


@pytest.mark.parametrize(
    "call", ["forward_backward", "optim_step", "save_adapter", "create_adapter"]
)
def test_one_death_of_the_engine_is_not_seen(bench: Make, call: str) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    faults.left[call] = 1
    model = work.model()
    run(work, model, 2)
    assert work.answer(work.save(model, 7))["path"].endswith("/weights/ckpt")


def test_a_death_between_operations_is_not_seen(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory(), snapshot_after_operations=2).start()
    model = work.model()
    faults.left["start_saving"] = 1  # while a recovery snapshot is taken
    norms = run(work, model, 2)
    assert len(faults.engines) == 2
    faults.left["unload_adapter"] = 1  # while an ended session's adapter is set aside
    work.scheduler.free_session(model.partition(":")[0])
    reference = work.model()
    assert run(work, reference, 2) == norms
    assert run(work, model, 1, start=7) == run(work, reference, 1, start=7)


def test_a_poisonous_operation_fails_alone_and_the_model_goes_on(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    model, other = work.model(), work.model("b")
    run(work, model, 1)
    faults.left["forward_backward"] = 2
    bad = work.answer(work.train(model, 4))
    assert bad["category"] == "server"
    assert work.answer(work.step(model, 5))["metrics"] == {"grad_norm": 0.0, "skipped": 1.0}
    work.train(other, 1, "b")
    assert work.answer(work.step(other, 2, "b"), "b")["metrics"]["grad_norm"] > 0


def test_samples_survive_the_death_of_the_engine(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    session = work.base_sampler()
    expected = scores(work, session)
    faults.left["step_sampling"] = 1
    assert scores(work, session, 1) == expected
    faults.left["step_sampling"] = 2
    failed = work.answer(work.sample(session, 2))
    assert failed["category"] == "server", "twice is enough"
    assert scores(work, session, 3) == expected


def test_ephemeral_samplers_survive_what_the_engine_and_the_server_do_not(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory(), snapshot_after_operations=4).start()
    model = work.model()
    run(work, model, 1)
    session = work.answer(work.save_ephemeral(model, 4))["sampling_session_id"]
    before = scores(work, session)
    run(work, model, 2, start=5)
    faults.left["step_sampling"] = 1
    assert scores(work, session, 1) == before
    work.close()
    again = bench().start()
    assert scores(again, session, 2) == before


def test_a_sampler_not_yet_written_when_the_engine_died_comes_back(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    model = work.model()
    run(work, model, 1)
    faults.left["start_saving"] = 1  # after the answer, while the weights go to disk
    session = work.answer(work.save_ephemeral(model, 4))["sampling_session_id"]
    run(work, model, 1, start=5)
    other = work.answer(work.save_ephemeral(model, 8))["sampling_session_id"]
    assert scores(work, session) != scores(work, other)


def test_no_snapshot_is_requested_from_an_engine_that_never_had_the_adapter(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults()
    work = bench(faults.factory(), snapshot_after_operations=2).start()
    model = work.model()
    faults.left["start_saving"] = 1  # of the sampler; the snapshot is due right after it
    work.result(work.train(model, 1))
    work.result(work.save_ephemeral(model, 2))
    assert run(work, model, 1, start=3)
    assert len(faults.engines) == 2
    assert "unknown" not in caplog.text
    assert "There is no adapter" not in caplog.text


def test_loading_survives_the_deletion_of_what_was_loaded(bench: Make) -> None:
    work = bench().start()
    model, target = work.model(), work.model()
    run(work, model, 2)
    path = work.answer(work.save(model, 7))["path"]
    assert work.answer(work.load(target, 1, path))["path"] == path
    expected = run(work, model, 1, start=8)
    for folder in (work.scheduler.folders.root / "checkpoints").iterdir():
        work.scheduler.folders.remove(folder)
    work.close()
    again = bench().start()
    assert run(again, target, 1, start=2) == expected


def test_adapters_are_evicted_for_each_other(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory(), max_adapters=2).start()
    fleet = [work.model() for _ in range(5)]
    first = [run(work, model, 1) for model in fleet]
    assert first == [first[0]] * 5
    second = [run(work, model, 1, start=4) for model in fleet]
    assert second == [second[0]] * 5
    assert len(faults.engines[0].adapters()) <= 3


def test_samplers_are_evicted_for_each_other(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory(), max_samplers=2).start()
    model = work.model()
    sessions = [
        work.answer(work.save_ephemeral(model, n))["sampling_session_id"] for n in range(1, 6)
    ]
    assert len({scores(work, session) for session in sessions}) == 1
    assert len(faults.engines[0]._samplers) <= 3


def test_idle_adapters_and_samplers_rest_on_disk_unnoticed(bench: Make, tmp_path: Path) -> None:
    quiet = Bench(_sub(tmp_path, "quiet"), NullEngine).start()
    expected = run(quiet, quiet.model(), 4)
    quiet.close()
    faults = Faults()
    work = bench(faults.factory(), adapter_idle_s=0.05).start()
    model = work.model()
    first = run(work, model, 2)
    session = work.answer(work.save_ephemeral(model, 7))["sampling_session_id"]
    before = scores(work, session)
    engine = faults.engines[0]
    wait_until(lambda: not engine.adapters() and not engine._samplers)
    assert first + run(work, model, 2, start=8) == expected
    assert scores(work, session, 1) == before


def test_an_idle_adapter_that_cannot_be_written_stays(bench: Make, monkeypatch) -> None:
    faults = Faults()
    work = bench(faults.factory(), adapter_idle_s=0.05).start()
    model = work.model()
    run(work, model, 1)
    tried = threading.Event()

    def fail(*_: object) -> None:
        tried.set()
        raise EngineFailure("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(faults.engines[0], "save_adapter", fail)
        assert tried.wait(5)
        assert len(run(work, model, 1, start=4)) == 1
        assert len(faults.engines) == 1
    wait_until(lambda: not faults.engines[0].adapters())


def test_a_freed_sampler_is_gone_from_memory_and_disk(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    model = work.model()
    session = work.answer(work.save_ephemeral(model, 1))["sampling_session_id"]
    scores(work, session)
    work.scheduler.free_session(model.partition(":")[0])
    failed = work.answer(work.sample(session, 9))
    assert "has ended" in failed["error"]
    assert list((work.scheduler.folders.root / "samplers").iterdir()) == []
    assert faults.engines[0]._samplers == {}


def test_what_a_crash_left_half_done_is_swept_up(bench: Make) -> None:
    work = bench()
    for kind in ("checkpoints", "snapshots", "samplers"):
        (work.scheduler.folders.root / kind / ("0" * 32)).mkdir()
    work.start()
    work.scheduler.wait_ready(5)
    left = [
        path
        for kind in ("checkpoints", "snapshots", "samplers")
        for path in (work.scheduler.folders.root / kind).iterdir()
    ]
    assert left == []


def test_samplers_of_a_session_that_ended_just_before_a_crash_are_freed(bench: Make) -> None:
    work = bench().start()
    model = work.model()
    session = work.answer(work.save_ephemeral(model, 1))["sampling_session_id"]
    scores(work, session)
    session_id = model.partition(":")[0]
    work.db.write(sessions.finish, "a", session_id, "success", None)  # and there it died
    work.close()
    again = bench().start()
    again.scheduler.wait_ready(5)
    assert list((again.scheduler.folders.root / "samplers").iterdir()) == []
    assert "has ended" in again.answer(again.sample(session, 9))["error"]


def test_a_load_that_did_not_come_to_its_end_changed_nothing(bench: Make) -> None:
    faults = Faults()
    work = bench(faults.factory()).start()
    model, other = work.model(), work.model()
    run(work, model, 2)
    run(work, other, 1)
    path = work.answer(work.save(model, 7))["path"]
    row = work.db.read(models.get_any, other)
    faults.left["save_adapter"] = 2  # both times while the snapshot of what was loaded is taken
    failed = work.answer(work.load(other, 4, path))
    assert failed["category"] == "server"
    assert work.db.read(models.get_any, other).snapshot_seq == row.snapshot_seq
    assert run(work, other, 1, start=5) == run(work, work.model(), 2)[1:], "as if never asked"


class _DiesWriting(NullEngine):
    """Its first engine dies in the midst of every kind of write."""

    num_started = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).num_started += 1
        self._is_first = self.num_started == 1

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        self._begin(folder)
        return super().save_adapter(adapter_id, folder, scope)

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        self._begin(folder)
        return super().start_saving(adapter_id, folder, scope)

    def _begin(self, folder: Path) -> None:
        if self._is_first:
            self.is_gone = True
            (folder.parent / f".{folder.name}.abc.new").mkdir()
            raise EngineFailure("died while writing", code="engine-died")


@pytest.mark.parametrize("write", ["save", "save_ephemeral", "snapshot"])
def test_an_engine_that_died_while_writing_leaves_nothing_behind(bench: Make, write: str) -> None:
    engine = type("Counted", (_DiesWriting,), {})
    work = bench(engine, snapshot_after_operations=1 if write == "snapshot" else 100).start()
    model = work.model()
    root = work.scheduler.folders.root
    of_others = root / "snapshots" / f".{'0' * 32}.abc.new"  # that another engine is writing
    of_others.mkdir()
    if write == "snapshot":
        work.result(work.train(model, 1))
    else:
        assert "type" in work.answer(getattr(work, write)(model, 1))
    wait_until(lambda: engine.num_started == 2)
    work.result(work.train(model, 2))
    # The second engine's own snapshot of this operation may still be under way.
    wait_until(lambda: {each for each in root.glob("*/.*") if each.is_dir()} == {of_others})


def test_unfinished_work_runs_at_the_next_start(bench: Make) -> None:
    first = bench()
    model = first.model()
    waiting = [first.train(model, 1), first.step(model, 2)]
    session = first.base_sampler()
    sample = first.sample(session, 0)
    second = bench().start()  # the first never started: as if it had been killed
    assert second.answer(waiting[1])["metrics"]["grad_norm"] > 0
    assert second.result(sample).encoding == "proto"


def test_a_request_stored_by_an_older_server_runs_after_an_upgrade(bench: Make) -> None:
    first = bench()
    session = first.base_sampler()
    # The body as the official client 0.36 sends it, and as servers have always kept it.
    body = (
        b'{"num_samples":1,"prompt":{"chunks":[{"tokens":[1,2,3],"type":"encoded_text"}]},'
        b'"sampling_params":{"max_tokens":3,"seed":7,"stop":[],"temperature":0.5,"top_k":-1,'
        b'"top_p":0.9},"sampling_session_id":"%s","seq_id":0,"prompt_logprobs":true,'
        b'"topk_prompt_logprobs":0,"topk_sample_logprobs":0,"prompt_alt_tokens_k":0,'
        b'"record_stability_info":false,"type":"sample"}'
    ) % session.encode()
    new = NewSample(
        owner="a",
        sampling_session_id=session,
        seq_id=0,
        body=body,
        digest=hashlib.sha256(body).digest(),
        num_samples=1,
        cost=10,
    )
    sample, _ = first.db.write(samples.append, new)
    second = bench().start()
    response = protobuf.decode_sample_response(second.result(sample.request_id).body)
    assert len(response.sequences[0].tokens) == 3
    assert len(response.prompt_logprobs or ()) == 3


def test_holes_are_remembered_across_a_restart(bench: Make) -> None:
    first = bench(hole_grace_s=0.2).start()
    model = first.model()
    assert first.answer(first.step(model, 3))["metrics"]
    first.close()
    second = bench(hole_grace_s=100.0).start()
    assert second.answer(second.step(model, 4))["metrics"], "numbers 1 and 2 are not waited for"
    late = NewOperation(
        owner="a", model_id=model, seq_id=1, kind="optim_step", body=b"", digest=b"", cost=1
    )
    with pytest.raises(operations.SequenceError):
        second.db.write(operations.append, late)


def test_a_failed_creation_fails_what_follows(bench: Make) -> None:
    work = bench().start()
    broken = work.model(rank=100_000)
    failed = work.answer(work.step(broken, 1))
    assert failed["category"] == "user"
    assert "creation failed" in failed["error"]


def test_cancelled_samples_end_at_once(bench: Make) -> None:
    work = bench(lambda: NullEngine(delay_s=0.3)).start()
    session = work.base_sampler()
    ids = [work.sample(session, n) for n in range(3)]
    assert not work.scheduler.sample_cancelling.cancel("mallory", ids[2])
    assert work.scheduler.sample_cancelling.cancel("a", ids[2])
    assert work.answer(ids[2])["code"] == "cancelled"
    assert not work.scheduler.sample_cancelling.cancel("a", ids[2])
    assert work.result(ids[0]).encoding == "proto"


def test_sampling_and_training_alternate(bench: Make) -> None:
    # Long beside a commit: training's hold up the driver, sampling's do not.
    work = bench(lambda: NullEngine(delay_s=0.05), max_running_samples=1, max_batch_operations=1)
    work.start()
    model, session = work.model(), work.base_sampler()
    work.answer(work.step(model, 1))
    trained = [work.train(model, n) for n in range(2, 22)]
    sampled = [work.sample(session, n) for n in range(20)]
    for request_id in (*trained, *sampled):
        work.result(request_id)
    kinds = ["t" if each in trained else "s" for each in work.order if each in {*trained, *sampled}]
    middle = kinds[10:30]
    assert 4 <= middle.count("s") <= 16, "neither waits for the other's end"


def test_bad_bodies_fail_with_the_users_category(bench: Make) -> None:
    work = bench().start()
    model = work.model()
    failed = work.answer(work.load(model, 1, "tinker://unknown:train:0/weights/x"))
    assert failed["category"] == "user"
    assert msgspec.json.encode(failed)


def _sub(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


class _SmallEngine(NullEngine):
    """A null engine that holds three things at most."""

    def _check_room(self) -> None:
        if len(self._adapters) + len(self._samplers) >= 3:
            raise EngineUserError("full", code="engine-full", field="rank")

    def create_adapter(self, adapter_id: str, model: str, spec: LoraSpec) -> AdapterInfo:
        self._check_room()
        return super().create_adapter(adapter_id, model, spec)

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        self._check_room()
        return super().load_adapter(adapter_id, model, folder, scope)

    def snapshot(self, adapter_id: str, sampler_id: str) -> None:
        self._check_room()
        super().snapshot(adapter_id, sampler_id)

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        self._check_room()
        super().load_sampler(sampler_id, model, folder)


def test_a_full_engine_evicts_what_is_idle(bench: Make) -> None:
    work = bench(_SmallEngine).start()
    fleet = [work.model() for _ in range(6)]
    first = [run(work, model, 1) for model in fleet]
    sessions = [
        work.answer(work.save_ephemeral(model, 4))["sampling_session_id"] for model in fleet
    ]
    second = [run(work, model, 1, start=5) for model in fleet]
    assert first == [first[0]] * 6
    assert second == [second[0]] * 6
    assert len({scores(work, session) for session in sessions}) == 1
