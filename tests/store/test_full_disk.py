"""A disk that runs full under the store: what was promised is there, what failed is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.support.disks import SmallDisk, small_disk
from tinkex.store import Database, StoreError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size_mb=3) as mounted:
        yield mounted


def put(conn: Connection, number: int, size: int) -> int:
    conn.execute(text("insert into things values (:n, :b)"), {"n": number, "b": os.urandom(size)})
    return number


def put_many(db: Database, numbers: range) -> None:
    for number in numbers:
        db.write(put, number, 100_000)


def there(conn: Connection) -> list[int]:
    return list(conn.execute(text("select number from things order by number")).scalars())


def opened(disk: SmallDisk) -> Database:
    db = Database(f"sqlite:///{disk.path / 'store.db'}")
    db.write(lambda conn: conn.execute(text("create table things (number int, body blob)")))
    return db


def test_a_write_that_does_not_fit_takes_no_acknowledged_one_with_it(disk: SmallDisk) -> None:
    db = opened(disk)
    gate = threading.Event()
    first = db.submit(lambda _conn: gate.wait())
    sizes = {1: 100, 2: 100, 3: 8_000_000, 4: 100, 5: 100}
    futures = {number: db.submit(put, number, size) for number, size in sizes.items()}
    gate.set()  # the five now share one commit
    first.result()
    with pytest.raises(StoreError, match="full") as failure:
        futures.pop(3).result()
    assert failure.value.code == "disk-full"
    assert failure.value.retry_after_s > 0
    acknowledged = [future.result() for future in futures.values()]
    assert acknowledged == [1, 2, 4, 5] == db.read(there)
    db.close()


def test_after_a_full_disk_writes_succeed_once_there_is_space(disk: SmallDisk) -> None:
    db = opened(disk)
    db.write(put, 1, 100)
    disk.fill()
    with pytest.raises(StoreError) as failure:
        put_many(db, range(2, 50))
    assert failure.value.code == "disk-full"
    kept = db.read(there)
    disk.relieve()
    assert db.write(put, 100, 100) == 100
    assert db.read(there) == [*kept, 100]
    db.close()
