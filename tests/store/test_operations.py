"""The log: append-only, one entry per (model, number), results once."""

from __future__ import annotations

import pytest

from tests.store.work import OWNER, add_model, append, new_operation
from tinkex.store import (
    Database,
    models,
    operation_outcomes,
    operations,
    result_retention,
    results,
)
from tinkex.store.models import SnapshotRecord
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import SequenceError
from tinkex.store.results import Result, error_result

DONE = Result(encoding="json", body=b"{}")


def test_the_same_pair_again_is_the_same_entry(db: Database) -> None:
    model = db.write(add_model)
    first = db.write(append, model, 1)
    again = db.write(append, model, 1)
    assert first.is_new
    assert not again.is_new
    assert again.operation == first.operation


@pytest.mark.parametrize("change", [{"body": b"other"}, {"kind": "save_weights"}])
def test_the_same_pair_with_other_content_is_refused(
    db: Database, change: dict[str, object]
) -> None:
    model = db.write(add_model)
    db.write(append, model, 1)
    with pytest.raises(SequenceError) as refusal:
        db.write(operations.append, new_operation(model, 1, **change))  # type: ignore[arg-type]
    assert refusal.value.status == 422
    assert refusal.value.code == "sequence-conflict"


@pytest.mark.parametrize(
    ("state", "code"), [("refused", "sequence-conflict"), ("skipped", "sequence-passed")]
)
def test_a_consumed_number_cannot_be_used(db: Database, state: str, code: str) -> None:
    model = db.write(add_model)
    assert db.write(operations.consume, new_operation(model, 1), state)
    with pytest.raises(SequenceError) as refusal:
        db.write(append, model, 1)
    assert refusal.value.code == code


def test_a_used_number_cannot_be_consumed(db: Database) -> None:
    model = db.write(add_model)
    db.write(append, model, 1)
    assert not db.write(operations.consume, new_operation(model, 1), "skipped")


def test_a_result_is_kept_once(db: Database) -> None:
    model = db.write(add_model)
    operation = db.write(append, model, 1).operation
    outcome = OperationOutcome(operation=operation, result=DONE, num_tokens=7, num_steps=1)
    db.write(operation_outcomes.finish, [outcome])
    other = OperationOutcome(operation=operation, result=error_result("no", category="server"))
    db.write(operation_outcomes.finish, [other, outcome])
    found = db.read(results.find, OWNER, operation.request_id)
    assert found is not None
    assert found.result == DONE
    stored = db.read(models.get, OWNER, model)
    assert stored is not None
    assert (stored.num_tokens, stored.num_steps) == (7, 1)


def test_only_the_owner_finds_anything(db: Database) -> None:
    model = db.write(add_model)
    operation = db.write(append, model, 1).operation
    assert db.read(operations.get, "bob", operation.request_id) is None
    assert db.read(results.find, "bob", operation.request_id) is None
    assert db.read(models.get, "bob", model) is None
    assert db.read(models.list_runs, "bob", limit=10, offset=0) == ([], 0)


def test_positions_after_a_restart(db: Database) -> None:
    model = db.write(add_model)
    finished = [db.write(append, model, n).operation for n in (0, 1)]
    db.write(
        operation_outcomes.finish,
        [OperationOutcome(operation=each, result=DONE) for each in finished],
    )
    db.write(append, model, 3)
    db.write(operations.consume, new_operation(model, 4), "refused")
    assert db.read(operations.positions, model) == {model: (2, {4})}
    assert [op.seq_id for op in db.read(operations.queued)] == [3]


def test_what_is_replayed_is_what_was_applied_after_the_snapshot(db: Database) -> None:
    model = db.write(add_model)
    logged = [db.write(append, model, n).operation for n in range(1, 6)]
    bad = error_result("no", category="user")
    outcomes = [
        OperationOutcome(operation=op, result=bad if op.seq_id == 4 else DONE) for op in logged[:4]
    ]
    db.write(operation_outcomes.finish, outcomes)
    db.write(models.record_snapshot, model, 2, SnapshotRecord(folder="f" * 32, size_bytes=10))
    assert [op.seq_id for op in db.read(operations.to_replay, model, 2)] == [3]
    assert db.write(operations.drop_bodies, model, 0, 2) == 2
    kept = db.read(operations.bodies, [op.request_id for op in logged])
    assert set(kept) == {logged[2].request_id, logged[4].request_id}, "all others are dropped"


def test_bodies_go_a_few_at_a_time_and_what_is_left_is_found_again(db: Database) -> None:
    model, other = db.write(add_model), db.write(add_model)
    logged = [
        db.write(append, whose, n).operation for n in range(1, 131) for whose in (model, other)
    ]
    outcomes = [OperationOutcome(operation=op, result=DONE) for op in logged if op.seq_id != 90]
    db.write(operation_outcomes.finish, outcomes)

    def numbers_with_body(whose: str) -> list[int]:
        kept = db.read(operations.bodies, [op.request_id for op in logged if op.model_id == whose])
        return [op.seq_id for op in logged if op.model_id == whose and op.request_id in kept]

    assert db.read(operations.last_without_body, model, 120) == 0
    assert db.write(operations.drop_bodies, model, 0, 120) == 50
    assert numbers_with_body(model) == list(range(51, 131))
    assert db.read(operations.last_without_body, model, 120) == 50
    assert db.write(operations.drop_bodies, model, 50, 120) == 101, "one of them waits"
    assert db.write(operations.drop_bodies, model, 101, 120) == 120
    assert numbers_with_body(model) == [90, *range(121, 131)]
    assert db.read(operations.last_without_body, model, 120) == 120, "nothing is left to drop"
    assert numbers_with_body(other) == list(range(1, 131))


def test_dropped_results_are_distinguished_from_unfinished_ones(db: Database) -> None:
    model = db.write(add_model)
    operation = db.write(append, model, 1).operation
    waiting = db.read(results.find, OWNER, operation.request_id)
    assert waiting is not None
    assert not waiting.is_finished
    db.write(operation_outcomes.finish, [OperationOutcome(operation=operation, result=DONE)])
    assert db.write(result_retention.drop_results, OWNER, 1e12) == 1
    dropped = db.read(results.find, OWNER, operation.request_id)
    assert dropped is not None
    assert dropped.is_finished
    assert dropped.result is None
