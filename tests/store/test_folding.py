"""The write-ahead log is folded in by a thread of its own, and a failure there harms nobody."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tinkex.store import Database, folding, space
from tinkex.store.folding import Folding


def put(conn: Connection) -> None:
    conn.execute(text("insert into things values (:b)"), {"b": os.urandom(4_000)})


def test_what_is_written_reaches_the_file_while_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "_PAGES_OF_LOG", 0)  # by itself SQLite folds nothing in
    monkeypatch.setattr(folding, "_JOBS_BETWEEN", 50)
    path = tmp_path / "store.db"
    db = Database(f"sqlite:///{path}")
    db.write(lambda conn: conn.execute(text("create table things (body blob)")))
    before = path.stat().st_size
    for _ in range(200):
        db.write(put)
    deadline = time.monotonic() + 10
    while path.stat().st_size < before + 150 * 4_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.stat().st_size >= before + 150 * 4_000
    db.close()


def test_a_disk_that_fails_is_tried_again_and_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folding, "_JOBS_BETWEEN", 1)
    monkeypatch.setattr(folding, "_PAUSE_AFTER_FAILURE_S", 0.01)
    tries = threading.Semaphore(0)

    def connect() -> None:
        tries.release()
        raise OSError("the disk is gone")

    thread = Folding(connect)
    for _ in range(3):
        thread.wrote(1)
        assert tries.acquire(timeout=10)
    thread.close()
    assert "the disk is gone" in caplog.text


def test_closing_does_not_wait_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_JOBS_BETWEEN", 1)
    monkeypatch.setattr(folding, "_PAUSE_AFTER_FAILURE_S", 3600.0)
    has_tried = threading.Event()

    def connect() -> None:
        has_tried.set()
        raise OSError

    thread = Folding(connect)
    thread.wrote(1)
    assert has_tried.wait(10)
    thread.close()
