"""Space kept aside beside the database: writes that free space work on a full disk, others do not
get it, and it is there again as soon as there is space."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.support.disks import SmallDisk, small_disk
from tinkex.store import Database, StoreError

RESERVE = 16 << 20  # what a server keeps aside, and a sixteenth of the disk
NAME = "store.db"
EMPTY_LOG = "pragma wal_checkpoint(truncate)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size_mb=256) as mounted:
        yield mounted


def opened(disk: SmallDisk) -> Database:
    db = Database(f"sqlite:///{disk.path / NAME}", reserve_bytes=RESERVE)
    db.write(
        lambda conn: conn.execute(text("create table if not exists things (number int, body blob)"))
    )
    asyncio.run(db.arestore_reserve())
    return db


def reserved(disk: SmallDisk) -> int:
    return (disk.path / f"{NAME}-reserve").stat().st_size


def put(conn: Connection, number: int, size: int = 100) -> None:
    conn.execute(text("insert into things values (:n, :b)"), {"n": number, "b": os.urandom(size)})


def drop(conn: Connection, number: int) -> int:
    return conn.execute(text("delete from things where number = :n"), {"n": number}).rowcount


def there(conn: Connection) -> list[int]:
    return list(conn.execute(text("select number from things order by number")).scalars())


def put_many(db: Database, numbers: range) -> None:
    for number in numbers:
        db.write(put, number, 2000)


def fill(db: Database, disk: SmallDisk) -> None:
    """Fills the disk, and then what the write-ahead log still has."""
    disk.fill()
    with pytest.raises(StoreError) as failure:
        put_many(db, range(1000, 10_000))
    assert failure.value.code == "disk-full"
    assert disk.free_bytes() == 0


def test_a_write_that_frees_space_works_on_a_full_disk_and_others_do_not(disk: SmallDisk) -> None:
    db = opened(disk)
    for number in range(300):
        db.write(put, number)
    fill(db, disk)
    assert reserved(disk) == RESERVE, "no other write gets it"
    for number in range(300):
        assert db.write_freeing(drop, number) == 1
        disk.fill()
    assert [number for number in db.read(there) if number < 300] == []
    with pytest.raises(StoreError, match="full"):
        db.write(put, 0, 500_000)
    disk.relieve()
    db.write(put, 0, 500_000)
    asyncio.run(db.arestore_reserve())
    assert reserved(disk) == RESERVE
    db.close()


def test_among_other_writes_only_the_one_that_frees_space_is_kept(disk: SmallDisk) -> None:
    db = opened(disk)
    db.write(put, 1)
    fill(db, disk)

    async def at_once() -> list[object]:
        writes = [db.awrite(put, n, 500_000) for n in (2, 3)]
        return await asyncio.gather(*writes, db.awrite_freeing(drop, 1), return_exceptions=True)

    first, second, freeing = asyncio.run(at_once())
    assert isinstance(first, StoreError)
    assert isinstance(second, StoreError)
    assert freeing == 1
    assert not {1, 2, 3} & set(db.read(there))
    db.close()


def test_a_store_opens_on_a_full_disk_and_takes_what_is_left_aside_again(disk: SmallDisk) -> None:
    db = opened(disk)
    db.write(put, 1)
    db.close()
    disk.fill()
    assert disk.free_bytes() == 0
    db = opened(disk)
    assert 0 < reserved(disk) <= RESERVE
    assert db.write_freeing(drop, 1) == 1
    db.close()


KILLED = """
import asyncio, sys
from tests.store.test_reserve import drop
from tinkex import crashpoints
from tinkex.store import Database

db = Database(sys.argv[1], reserve_bytes=int(sys.argv[2]))
asyncio.run(db.arestore_reserve())
crashpoints.arm("store.commit.before:2")  # the first attempt fails, the second has the reserve
db.write_freeing(drop, 1)
"""


def test_a_kill_while_the_reserve_is_released_loses_nothing(disk: SmallDisk) -> None:
    db = opened(disk)
    db.write(put, 1)
    db.write(put, 2)
    fill(db, disk)
    command = [sys.executable, "-c", KILLED, db.url, str(0)]
    unaided = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "disk is full" in unaided.stderr, "there is no second attempt without a reserve"
    command[-1] = str(RESERVE)
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Killed by TINKEX_TEST_CRASH" in killed.stderr, killed.stderr
    assert db.read(there)[:2] == [1, 2], "it was not committed"
    asyncio.run(db.arestore_reserve())
    disk.fill()
    assert db.write_freeing(drop, 1) == 1
    db.close()


def test_a_delete_writes_little_of_what_it_frees(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / NAME}")
    db.write(lambda conn: conn.execute(text("create table things (number int, body blob)")))
    for number in range(40):
        db.write(put, number, 500_000)
    asyncio.run(db._arun_bare(lambda cursor: cursor.execute(EMPTY_LOG).fetchall()))
    db.write(lambda conn: conn.execute(text("delete from things")))
    assert (tmp_path / f"{NAME}-wal").stat().st_size < 2_000_000, "of twenty million bytes"
    db.close()


def test_what_was_trimmed_goes_back_to_a_full_disk(disk: SmallDisk) -> None:
    db = opened(disk)
    for number in range(100):
        db.write(put, number, 80_000)
    fill(db, disk)
    for number in range(100):
        db.write_freeing(drop, number)
    disk.fill()
    asyncio.run(db.ashrink())
    assert disk.free_bytes() + reserved(disk) > 4_000_000
    db.close()
