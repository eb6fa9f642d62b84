"""A power cut in the midst of a write: what was committed before is there, the rest is as if it
had never begun."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sqlalchemy import Connection, text

from tests.scheduler.test_crashes import copied
from tests.scheduler.work import Bench
from tests.support.soak import amount
from tinkex.engine.null import NullEngine
from tinkex.store import Database

PAGE = 4096


def put(conn: Connection, number: int) -> None:
    body = os.urandom(3 * PAGE)
    conn.execute(text("insert into things values (:n, :b)"), {"n": number, "b": body})


def there(db: Database) -> list[int]:
    return db.read(
        lambda conn: list(conn.execute(text("select number from things order by number")).scalars())
    )


def opened(folder: Path) -> list[int]:
    """What a store finds in the folder, which must be sound."""
    db = Database(f"sqlite:///{folder / 'store.db'}")
    try:
        check = db.read(lambda conn: conn.execute(text("pragma integrity_check")).scalar())
        assert check == "ok"
        return there(db)
    finally:
        db.close()


def test_a_torn_end_of_the_log_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    db = Database(f"sqlite:///{origin / 'store.db'}")
    db.write(lambda conn: conn.execute(text("create table things (number int, body blob)")))
    for number in range(3):
        db.write(put, number)
    log = origin / "store.db-wal"
    begin = log.stat().st_size
    db.write(put, 3)  # was never acknowledged, if the power fails in it
    end = log.stat().st_size
    whole = copied(origin, tmp_path / "whole")
    db.close()
    step = amount(512, 64)
    for cut in range(begin, end, step):
        torn = shutil.copytree(whole, tmp_path / "torn")
        (torn / "store.db-shm").unlink()
        os.truncate(torn / "store.db-wal", cut)
        assert opened(torn) == [0, 1, 2], f"cut at {cut - begin} of {end - begin}"
        shutil.rmtree(torn)
    for at in range(begin + 24, end, step):  # a page that was half written over old content
        torn = shutil.copytree(whole, tmp_path / "torn")
        (torn / "store.db-shm").unlink()
        with (torn / "store.db-wal").open("r+b") as handle:
            handle.seek(at)
            byte = handle.read(1)
            handle.seek(at)
            handle.write(bytes([byte[0] ^ 255]))
        assert opened(torn) == [0, 1, 2], f"torn at {at - begin} of {end - begin}"
        shutil.rmtree(torn)
    (whole / "store.db-shm").unlink()
    assert opened(whole) == [0, 1, 2, 3]


def test_a_page_torn_while_the_log_was_folded_in_comes_from_the_log(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    db = Database(f"sqlite:///{origin / 'store.db'}")
    db.write(lambda conn: conn.execute(text("create table things (number int, body blob)")))
    for number in range(5):
        db.write(put, number)
    torn = copied(origin, tmp_path / "torn")
    db.close()
    (torn / "store.db-shm").unlink()
    with (torn / "store.db").open("r+b") as handle:  # all of it is in the log still
        handle.write(os.urandom(PAGE // 2))
    assert opened(torn) == [0, 1, 2, 3, 4]


def test_half_written_folders_are_deleted_and_never_listed(tmp_path: Path) -> None:
    work = Bench(tmp_path, NullEngine).start()
    model = work.model()
    work.result(work.train(model, 1))
    saved = work.answer(work.save(model, 2))["path"]
    work.close()
    for kind in ("checkpoints", "snapshots", "samplers"):
        half = tmp_path / kind / f".{'a' * 32}.123.new"
        half.mkdir()
        (half / "null_adapter.json").write_bytes(b'{"model": "nu')
        (tmp_path / kind / ("b" * 32)).mkdir()
    again = Bench(tmp_path, NullEngine).start()
    left = [path for kind in ("checkpoints", "samplers") for path in (tmp_path / kind).iterdir()]
    assert len(left) == 1
    assert again.answer(again.load(model, 3, saved))["type"] == "load_weights"
    again.close()
