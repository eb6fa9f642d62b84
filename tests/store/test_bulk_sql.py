"""Rows written at once are what rows written one by one would be, and one bad row spoils none."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, text

from tests.store.work import OWNER, add_model, new_operation
from tinkex.store import Database, models, operation_outcomes, operations, results
from tinkex.store.bulk_sql import BatchableWrite, BulkStatement
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import Appended, NewOperation, SequenceError
from tinkex.store.results import Result


class Unknown(Exception):
    """There is no such model."""


def append_one(conn: Connection, new: NewOperation) -> Appended:
    state = models.submit_state(conn, new.owner, new.model_id)
    if state is None:
        raise Unknown
    return operations.append(conn, new, trimmed_seq=state.trimmed_seq)


def append_all(conn: Connection, calls: list[tuple[NewOperation]]) -> list[Appended] | None:
    return operations.append_all(conn, [new for (new,) in calls])


APPEND = BatchableWrite(append_one, append_all)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each statement did that did all of them."""
    counts: list[int] = []
    before = BulkStatement.did_all

    def did_all(self: BulkStatement, conn: Connection, rows: Any) -> bool:
        is_whole = before(self, conn, rows)
        if is_whole:
            counts.append(len(rows))
        return is_whole

    monkeypatch.setattr(BulkStatement, "did_all", did_all)
    return counts


def append_together(db: Database, new: list[NewOperation]) -> list[Appended | BaseException]:
    """What each caller is told, if all come while a commit runs and so share the next."""

    async def scene() -> list[Appended | BaseException]:
        is_held, go_on = threading.Event(), threading.Event()

        def hold(_conn: Connection) -> None:
            is_held.set()
            go_on.wait(10)

        holding = db.submit(hold)
        await asyncio.to_thread(is_held.wait, 10)
        requests = [asyncio.ensure_future(db.awrite(APPEND, each)) for each in new]
        await asyncio.sleep(0)  # all are handed in
        go_on.set()
        found = await asyncio.gather(*requests, return_exceptions=True)
        holding.result(10)
        return found

    return asyncio.run(scene())


def log_of(db: Database) -> list[tuple[Any, ...]]:
    """The log without ids and times."""
    query = text(
        "select model_id, seq_id, owner, kind, cost, state, body, body_hash from operations "
        "order by model_id, seq_id"
    )
    return db.read(lambda conn: [tuple(row) for row in conn.execute(query)])


def change(conn: Connection, values: str, model_id: str) -> None:
    conn.execute(text(f"update models set {values} where model_id = :id"), {"id": model_id})


def test_new_operations_of_many_models_are_appended_at_once(
    db: Database, at_once: list[int]
) -> None:
    model_ids = [db.write(add_model) for _ in range(3)]
    new = [new_operation(each, number) for number in range(1, 11) for each in model_ids]
    found = append_together(db, new)
    assert at_once == [30]
    for request, reported in zip(new, found, strict=True):
        assert isinstance(reported, Appended)
        assert reported.is_new
        kept = db.read(operations.find, request.model_id, request.seq_id)
        assert kept == reported.operation
    assert len(log_of(db)) == 30


def test_one_that_is_refused_or_known_affects_no_other(db: Database, at_once: list[int]) -> None:
    model = db.write(add_model)
    known = db.write(append_one, new_operation(model, 1))
    other = new_operation(model, 1, body=b"something else")
    new = [
        new_operation(model, 1),
        other,
        new_operation("unknown", 1),
        new_operation(model, 2),
        new_operation(model, 3),
        new_operation(model, 3),
    ]
    again, conflict, unknown, second, third, twin = append_together(db, new)
    assert at_once == []
    assert isinstance(again, Appended)
    assert (again.operation, again.is_new) == (known.operation, False)
    assert isinstance(conflict, SequenceError)
    assert isinstance(unknown, Unknown)
    assert isinstance(second, Appended)
    assert isinstance(third, Appended)
    assert isinstance(twin, Appended)
    assert (third.is_new, twin.is_new) == (True, False)
    assert third.operation == twin.operation
    assert [row[1] for row in log_of(db)] == [1, 2, 3]


def test_what_belongs_to_others_ended_or_was_trimmed_is_not_appended_at_once(
    db: Database,
) -> None:
    model, ended, trimmed = (db.write(add_model) for _ in range(3))
    db.write(change, "state = 'ended'", ended)
    db.write(change, "trimmed_seq = 5", trimmed)
    fine = new_operation(model, 1)
    stranger = msgspec.structs.replace(new_operation(model, 2), owner="mallory")
    for wrong in (stranger, new_operation(ended, 1), new_operation(trimmed, 5)):
        assert db.write(operations.append_all, [fine, wrong]) is None
        assert log_of(db) == [], "nothing of it was done"
    assert db.write(operations.append_all, [fine, new_operation(trimmed, 6)]) is not None


def test_more_than_fits_one_statement_is_kept_all_the_same(db: Database) -> None:
    model = db.write(add_model)
    new = [new_operation(model, number) for number in range(1, 6001)]
    made = db.write(lambda conn: [append_one(conn, each).operation for each in new])
    done = Result(encoding="json", body=b"{}")
    db.write(
        operation_outcomes.finish, [OperationOutcome(operation=each, result=done) for each in made]
    )
    for operation in (made[0], made[-1]):
        found = db.read(results.find, OWNER, operation.request_id)
        assert found is not None
        assert found.result == done


@pytest.mark.parametrize("seed", range(4))
def test_finishing_at_once_is_finishing_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stores = []
    for is_at_once in (True, False):
        if not is_at_once:
            monkeypatch.setattr(BulkStatement, "did_all", lambda *_: False)
        db = Database(f"sqlite:///{tmp_path / str(is_at_once)}.db")
        stores.append(finish_some(db, random.Random(seed)))
        db.close()
    assert stores[0] == stores[1]


def finish_some(db: Database, dice: random.Random) -> list[Any]:
    """What the store says after batches of outcomes, some of which came before."""
    model_ids = [db.write(add_model) for _ in range(3)]
    kinds = ("forward_backward", "optim_step", "forward", "save_weights")
    appended = [
        db.write(append_one, new_operation(each, number, kind=dice.choice(kinds)))
        for number in range(1, 13)
        for each in model_ids
    ]
    outcomes = [
        OperationOutcome(
            operation=each.operation,
            result=Result(encoding=dice.choice(("proto", "json", "error")), body=dice.randbytes(9)),
            num_tokens=dice.randrange(9),
            num_steps=dice.randrange(2),
        )
        for each in appended
    ]
    dice.shuffle(outcomes)
    for start in range(0, len(outcomes), 6):
        again = dice.sample(outcomes[:start], min(start, dice.randrange(3)))
        db.write(operation_outcomes.finish, outcomes[start : start + 6] + again)
    kept = [db.read(results.find, OWNER, each.operation.request_id) for each in appended]
    usage = db.read(
        lambda conn: [
            tuple(row)
            for row in conn.execute(text("select num_tokens, num_steps from models order by rowid"))
        ]
    )
    return [sorted((row[1:] for row in log_of(db)), key=repr), kept, usage]
