"""Usage by owner, key, run and day; what is kept on disk; and databases from before it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.store.work import OWNER, add_checkpoint, add_model, append
from tinkex.store import Database, keys, models, operation_outcomes, quotas, usage_sums
from tinkex.store.migrations import m009_series_and_usage
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.results import Result
from tinkex.store.usage_sums import Grouping, Spent, UsageOf, UsageSums


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = Database(url if is_sqlite else request.getfixturevalue("empty_postgres_url"))
    yield database
    database.close()


def sums(db: Database, by: Grouping, owner: str = OWNER) -> list[UsageSums]:
    return db.read(usage_sums.list_by, owner, by, None, None)


def test_usage_adds_up_by_day_key_and_run(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    key = db.write(keys.add, keys.new_key(), name="laptop", owner=OWNER)
    mine, keyless = UsageOf(OWNER, key.key_id, "r1"), UsageOf(OWNER, None, None)
    used = [
        (mine, Spent(tokens_trained=1, engine_s=0.5)),
        (mine, Spent(tokens_sampled=2, tokens_scored=3, tokens_cached=4)),
        (keyless, Spent(tokens_scored=5)),
        (UsageOf("bob", 7, "r1"), Spent(tokens_trained=100)),
    ]
    db.write(usage_sums.add, used)
    today = usage_sums.today()
    monkeypatch.setattr(usage_sums, "today", lambda: today + 1)
    db.write(usage_sums.add, used[:1])
    total = sums(db, "total")[0]
    assert (total.tokens_trained, total.tokens_sampled) == (2, 2)
    assert (total.tokens_scored, total.tokens_cached, total.engine_s) == (8, 4, 1.0)
    assert [(each.key_id, each.key_name, each.tokens_scored) for each in sums(db, "key")] == [
        (None, None, 5),
        (key.key_id, "laptop", 3),
    ]
    assert [(each.run_id, each.tokens_trained) for each in sums(db, "run")] == [
        (None, 0),
        ("r1", 2),
    ]
    first = usage_sums.day_of(today)
    assert [(each.day, each.tokens_trained) for each in sums(db, "day")] == [
        (first, 1),
        (first + timedelta(days=1), 1),
    ]
    found = db.read(usage_sums.list_by, OWNER, "day", first + timedelta(days=1), None)
    assert [each.day for each in found] == [first + timedelta(days=1)]
    found = db.read(usage_sums.list_by, OWNER, "day", None, first)
    assert [each.day for each in found] == [first]
    assert sums(db, "total", "nobody")[0].tokens_trained == 0


def test_days_are_dropped_when_they_are_old(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    of, today = UsageOf(OWNER, 1, "r"), usage_sums.today()
    db.write(usage_sums.add, [(of, Spent(tokens_trained=1))])
    monkeypatch.setattr(usage_sums, "today", lambda: today + 3)
    db.write(usage_sums.add, [(of, Spent(tokens_trained=2))])
    assert db.write(usage_sums.drop_days, today) == 0
    assert db.write(usage_sums.drop_days, today + 1) == 1
    assert sums(db, "total")[0].tokens_trained == 2


def test_the_bytes_of_a_day_are_those_of_its_last_count(db: Database) -> None:
    db.write(add_checkpoint)
    kept = db.read(quotas.bytes_by_owner)
    assert kept[OWNER] == 10
    assert db.read(usage_sums.bytes_changed, kept) == kept
    db.write(usage_sums.record_bytes, kept)
    assert db.read(usage_sums.bytes_changed, kept) == {}
    assert sums(db, "day")[0].bytes_kept == 10
    gone = db.read(usage_sums.bytes_changed, {})
    assert gone == {OWNER: 0}
    db.write(usage_sums.record_bytes, gone)
    assert sums(db, "day")[0].bytes_kept == 0
    (run_id,) = db.read(quotas.bytes_by_run, OWNER)
    assert db.read(quotas.bytes_by_key, OWNER) == {None: 10}
    assert db.read(models.get, OWNER, run_id) is not None


def forget_series(conn: Connection) -> None:
    """Makes the database one of the version before."""
    conn.execute(text("drop index models_by_root"))
    for table in ("run_points", "usage"):
        conn.execute(text(f"drop table {table}"))
    of_models = "key_id name tags root_id resumed_from first_point series logged"
    for table, columns in (
        ("models", of_models),
        ("operations", "key_id"),
        ("samples", "key_id run_id"),
        ("checkpoints", "at_point at_step at_tokens"),
    ):
        for column in columns.split():
            conn.execute(text(f"alter table {table} drop column {column}"))
    name = m009_series_and_usage.__name__
    conn.execute(text("delete from migrations where name = :name"), {"name": name})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_of_the_version_before_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("empty_postgres_url")
    first = Database(url)
    model = first.write(add_model)
    saved = first.write(add_checkpoint)
    waiting = first.write(append, model, 1).operation
    first.write(forget_series)
    first.close()
    second = Database(url)
    found = second.read(models.get, OWNER, model)
    assert found is not None
    assert (found.tags, found.name, found.root) == ({}, None, model)
    outcome = OperationOutcome(
        operation=waiting, result=Result(encoding="json", body=b"{}"), num_tokens=3
    )
    second.write(operation_outcomes.finish, [outcome])
    assert sums(second, "run")[0].tokens_trained == 3
    assert saved in second.read(
        lambda conn: set(
            conn.execute(
                text("select checkpoint_id from checkpoints where at_point is null")
            ).scalars()
        )
    )
    second.close()
