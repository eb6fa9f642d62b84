"""An SQLite file gives back what was deleted, and its write-ahead log does not grow for ever."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tinkex.store import Database, sqlite_space


def put(conn: Connection, count: int) -> None:
    for _ in range(count):
        conn.execute(text("insert into things values (:b)"), {"b": os.urandom(50_000)})


def clear(conn: Connection) -> None:
    conn.execute(text("delete from things"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def db(path: Path) -> Database:
    database = Database(f"sqlite:///{path}")
    database.write(lambda conn: conn.execute(text("create table things (body blob)")))
    return database


def test_deleted_rows_free_their_space(db: Database, path: Path) -> None:
    for _ in range(10):
        db.write(put, 20)
    db.write(clear)
    asyncio.run(db.ashrink())
    db.close()
    assert path.stat().st_size < 5_500_000, "of ten that were there"


def test_free_space_is_used_before_the_file_grows(db: Database, path: Path) -> None:
    db.write(put, 100)
    sizes = []
    for _ in range(5):
        db.write(clear)
        db.write(put, 100)
        sizes.append(path.stat().st_size)
    db.close()
    assert sizes[-1] <= sizes[0] * 1.05


def test_the_log_is_cut_once_readers_let_it(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_space, "_MAX_LOG_BYTES", 1_000_000)
    log = path.with_name("store.db-wal")
    with db._reader.connect() as reader:
        reader.execute(text("select count(*) from things")).scalar()
        for _ in range(5):
            db.write(put, 20)
        assert log.stat().st_size > 4_000_000, "a reader holds its beginning"
        asyncio.run(db.ashrink())  # waits a little for the reader, then goes on without
        assert log.stat().st_size > 4_000_000
    asyncio.run(db.ashrink())
    assert log.stat().st_size == 0
    assert db.read(lambda conn: conn.execute(text("select count(*) from things")).scalar()) == 100
    db.close()
