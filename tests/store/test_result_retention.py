"""What is dropped goes whole, in order, for good; a number once used is never used again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, text

from tests.store.postgres import each_database
from tests.store.work import OWNER, add_checkpoint, add_model, append, new_operation
from tinkex.store import (
    Database,
    clock,
    models,
    operation_outcomes,
    operations,
    result_retention,
    results,
    samplers,
    samples,
    session_retention,
    sessions,
)
from tinkex.store.clock import SteadyClock, steady_now
from tinkex.store.migrations import MIGRATIONS
from tinkex.store.models import SnapshotRecord
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import OperationDropped
from tinkex.store.request_ids import was_made_for
from tinkex.store.results import Result, error_result
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import NewSample, SampleDropped
from tinkex.types.requests import CLONE_STRIDE

DONE = Result(encoding="json", body=b"{}")


db = each_database


@pytest.fixture
def pass_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    passed = [0.0]
    monkeypatch.setattr(clock, "_clock", SteadyClock(seconds_up=lambda: passed[0]))

    def move(seconds: float) -> None:
        passed[0] += seconds

    return move


def run(db: Database, model: str, seq_id: int, kind: str = "optim_step", body: int = 20) -> str:
    """The request id of an operation that was done."""
    new = msgspec.structs.replace(new_operation(model, seq_id, b"x" * body), kind=kind)
    operation = db.write(operations.append, new).operation
    db.write(operation_outcomes.finish, [OperationOutcome(operation=operation, result=DONE)])
    return operation.request_id


def numbers(db: Database, model: str) -> list[int]:
    query = text("select seq_id from operations where model_id = :m order by seq_id")
    return list(db.read(lambda conn: conn.execute(query, {"m": model}).scalars().all()))


def trim(db: Database, model: str, before: float) -> None:
    for owner, up_to in db.read(result_retention.results_to_drop, before, 10**12).items():
        while db.write(result_retention.drop_results, owner, up_to):
            pass
    while db.write(result_retention.trim_operations, model, before):
        pass


def mark(db: Database, model: str) -> int | None:
    found = db.read(models.get, OWNER, model)
    assert found is not None
    return found.trimmed_seq


def test_the_log_goes_as_far_as_a_snapshot_covers_it(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    model = db.write(add_model)
    for seq_id in range(1, 8):
        run(db, model, seq_id)
    pass_by(100)
    trim(db, model, steady_now() - 50)
    assert numbers(db, model) == [1, 2, 3, 4, 5, 6, 7], "a rebuild needs them all"
    db.write(models.record_snapshot, model, 5, SnapshotRecord(folder="a" * 32, size_bytes=10))
    trim(db, model, steady_now() - 50)
    assert numbers(db, model) == [6, 7]
    assert mark(db, model) == 5
    assert [each.seq_id for each in db.read(operations.to_replay, model, 5)] == [6, 7]


@pytest.mark.parametrize("kind", ["forward", "save_weights"])
def test_what_is_never_replayed_needs_no_snapshot(
    db: Database, pass_by: Callable[[float], None], kind: str
) -> None:
    model = db.write(add_model)
    ids = [run(db, model, seq_id, kind) for seq_id in range(1, 5)]
    assert db.read(operations.bodies, ids) == {}, "its body goes when it is done"
    pass_by(100)
    trim(db, model, steady_now() - 50)
    assert numbers(db, model) == []
    assert db.read(operations.positions, model) == {model: (5, set())}
    assert db.read(operations.free_seq, model) == 5


def test_one_that_waits_or_is_young_or_has_its_result_holds_the_rest(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    model = db.write(add_model)
    run(db, model, 1, "forward")
    waiting = db.write(append, model, 2).operation
    run(db, model, 3, "forward")
    pass_by(100)
    trim(db, model, steady_now() - 50)
    assert numbers(db, model) == [2, 3]
    failed = error_result("no", category="user")
    db.write(operation_outcomes.finish, [OperationOutcome(operation=waiting, result=failed)])
    db.write(result_retention.trim_operations, model, steady_now() - 50)
    assert numbers(db, model) == [2, 3], "its result is not old"
    pass_by(100)
    trim(db, model, steady_now() - 50)
    assert numbers(db, model) == []


def test_a_trimmed_number_never_runs_again(db: Database, pass_by: Callable[[float], None]) -> None:
    model = db.write(add_model)
    first = run(db, model, 1, "forward")
    refused = new_operation(model, 2)
    assert db.write(operations.consume, refused, "refused")
    pass_by(100)
    trim(db, model, steady_now() - 50)
    trimmed_seq = mark(db, model)
    assert trimmed_seq == 2
    for seq_id in (1, 2):
        again = new_operation(model, seq_id, b"x" * 20)
        with pytest.raises(OperationDropped, match="not run again"):
            db.write(operations.append, again, trimmed_seq=trimmed_seq)
        assert not db.write(operations.consume, again, "refused", trimmed_seq=trimmed_seq)
    assert numbers(db, model) == []
    assert db.read(results.find, OWNER, first) is None
    assert was_made_for(OWNER, first)
    assert not was_made_for("bob", first)
    assert not was_made_for(OWNER, uuid.uuid4().hex)
    assert db.write(operations.append, new_operation(model, 3), trimmed_seq=trimmed_seq).is_new


def test_long_logs_go_in_slices(db: Database, pass_by: Callable[[float], None]) -> None:
    model = db.write(add_model)
    count = result_retention.SLICE + 20

    def log(conn: Connection) -> None:
        for seq_id in range(1, count + 1):
            operations.consume(conn, new_operation(model, seq_id), "refused")

    db.write(log)
    pass_by(100)
    found, after = [], 0
    while after is not None:
        more, after = db.read(result_retention.models_to_trim, steady_now() - 50, after)
        found += more
    assert model in found
    assert (
        db.write(result_retention.trim_operations, model, steady_now() - 50)
        == result_retention.SLICE
    )
    assert mark(db, model) == result_retention.SLICE
    assert db.write(result_retention.trim_operations, model, steady_now() - 50) == 20
    assert db.write(result_retention.trim_operations, model, steady_now() - 50) == 0
    assert mark(db, model) == count


def test_results_above_the_size_go_oldest_first_and_only_the_tenants_own(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    greedy, polite = f"greedy-{uuid.uuid4()}", f"polite-{uuid.uuid4()}"
    big = Result(encoding="proto", body=b"x" * 100)
    for place in range(10):
        pass_by(1)
        db.write(results.keep, greedy, f"{greedy}-{place}", big)
    db.write(results.keep, polite, polite, big)
    limits = db.read(result_retention.results_to_drop, steady_now() - 3600, 350)
    assert polite not in limits
    assert db.write(result_retention.drop_results, greedy, limits[greedy]) == 7

    def left(conn: Connection) -> set[str]:
        query = text("select request_id from results where owner in (:a, :b)")
        return set(conn.execute(query, {"a": greedy, "b": polite}).scalars())

    assert db.read(left) == {polite, *(f"{greedy}-{place}" for place in (7, 8, 9))}


def sample(db: Database, session: str, seq_id: int, *, is_old: bool = True) -> samples.Sample:
    new = NewSample(
        owner=OWNER,
        sampling_session_id=session,
        seq_id=seq_id,
        body=b"{}",
        digest=b"d" * 32,
        num_samples=1,
        cost=1,
        may_be_trimmed=is_old,
    )
    return db.write(samples.append, new)[0]


def test_samples_go_and_completions_count_on(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    session = f"{uuid.uuid4()}:sample:0"
    clone = 3 * CLONE_STRIDE
    for seq_id in (0, 1, clone + 5):
        db.write(samples.finish, [(sample(db, session, seq_id), DONE)])
    before = db.read(samples.completions, OWNER, session, 0, 0, 10)
    pass_by(100)
    old = steady_now() - 50
    for owner, up_to in db.read(result_retention.results_to_drop, old, 10**12).items():
        while db.write(result_retention.drop_results, owner, up_to):
            pass
    while db.write(result_retention.trim_samples, old):
        pass
    assert db.read(samples.completions, OWNER, session, 0, 0, 10) == []
    with pytest.raises(SampleDropped):
        sample(db, session, 1)
    assert not db.write(samples.append, _again(session, clone + 5))[1], "the last one stays"
    db.write(samples.finish, [(sample(db, session, 2), DONE)])
    (after,) = db.read(samples.completions, OWNER, session, 0, before[-1].number, 10)
    assert after.number > before[-1].number, "or clients with a cursor would never hear of it"


def _again(session: str, seq_id: int) -> NewSample:
    return NewSample(
        owner=OWNER,
        sampling_session_id=session,
        seq_id=seq_id,
        body=b"{}",
        digest=b"d" * 32,
        num_samples=1,
        cost=1,
        may_be_trimmed=True,
    )


def finished(db: Database, model: str) -> str:
    """The session of the model, session_retention."""
    session_id = model.partition(":")[0]
    db.write(sessions.finish, OWNER, session_id, "success", None)
    return session_id


def test_an_ended_session_frees_what_it_held(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    model = db.write(add_model)
    run(db, model, 1)
    db.write(models.record_snapshot, model, 1, SnapshotRecord(folder="c" * 32, size_bytes=10))
    session_id = finished(db, model)
    sampler = SamplerRecord(
        sampling_session_id=f"{session_id}:sample:0",
        owner=OWNER,
        session_id=session_id,
        base_model="null",
        engine_model="null",
        model_id=model,
        folder="d" * 32,
        created_at=steady_now(),
    )
    db.write(samplers.insert, sampler)
    assert session_id not in db.read(session_retention.sessions_to_trim, steady_now() - 50)
    pass_by(100)
    assert session_id in db.read(session_retention.sessions_to_trim, steady_now() - 50)
    left = db.write(session_retention.trim_session, session_id, steady_now() - 50)
    assert left is not None
    assert (left.model_ids, left.snapshot_folders) == ([model], ["c" * 32])
    assert left.sampler_folders == ["d" * 32]
    run_row = db.read(models.get, OWNER, model)
    assert run_row is not None
    assert (run_row.state, run_row.snapshot_folder) == ("ended", None)
    assert db.read(samplers.get, OWNER, sampler.sampling_session_id) is None
    assert session_id not in db.read(session_retention.sessions_to_trim, steady_now() - 50)


def test_a_session_that_is_still_used_is_left_alone(
    db: Database, pass_by: Callable[[float], None]
) -> None:
    model = db.write(add_model)
    session_id = finished(db, model)
    pass_by(100)
    db.write(append, model, 1)
    assert db.write(session_retention.trim_session, session_id, steady_now() - 50) is None
    run_row = db.read(models.get, OWNER, model)
    assert run_row is not None
    assert run_row.state == "ready"


def test_records_with_a_checkpoint_stay(db: Database, pass_by: Callable[[float], None]) -> None:
    plain = db.write(add_model)
    checkpoint_id = db.write(add_checkpoint)
    query = text("select model_id from checkpoints where checkpoint_id = :c")
    saved = db.read(lambda conn: conn.execute(query, {"c": checkpoint_id}).scalar_one())
    sessions_of = {model: finished(db, model) for model in (plain, saved)}
    pass_by(1000)
    for session_id in sessions_of.values():
        assert db.write(session_retention.trim_session, session_id, steady_now() - 50) is not None
    while db.write(session_retention.drop_records, steady_now() - 500):
        pass
    assert db.read(models.get, OWNER, plain) is None
    assert db.read(sessions.get, OWNER, sessions_of[plain]) is None
    assert db.read(models.get, OWNER, saved) is not None
    assert db.read(sessions.get, OWNER, sessions_of[saved]) is not None


def test_a_store_of_the_first_release_gets_its_marks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    first = Database(url)
    model = first.write(add_model)
    request_id = run(first, model, 1)

    def age(conn: Connection) -> None:
        conn.execute(text("drop table sample_marks"))
        conn.execute(text("drop index results_by_owner_and_age"))
        conn.execute(text("create index results_by_age on results (created_at)"))
        for table, column in (
            ("models", "trimmed_seq"),
            ("sessions", "trimmed_at"),
            ("sampling_sessions", "used_at"),
            ("results", "size_bytes"),
        ):
            conn.execute(text(f"alter table {table} drop column {column}"))
        name = MIGRATIONS[2].__name__
        conn.execute(text("delete from migrations where name = :n"), {"n": name})

    first.write(age)
    first.close()
    second = Database(url)
    assert mark(second, model) is None
    limits = second.read(result_retention.results_to_drop, time.time() - 3600, 1)
    assert limits.keys() == {OWNER}, "sizes of old results are known"
    found = second.read(results.find, OWNER, request_id)
    assert found is not None
    assert found.result == DONE
    second.close()
