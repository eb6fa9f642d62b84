"""An SQLite file is for its owner alone, and keeps no secret that an older version put there."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text

from tinkex.errors import ConfigError
from tinkex.store import Database, clock
from tinkex.store.sqlite_file import sqlite_file


def as_of_an_older_version(conn: Connection, secret: bytes) -> None:
    insert = text("insert into settings (name, value) values ('signing', :secret)")
    conn.execute(insert, {"secret": secret})
    conn.execute(text("delete from migrations where name = 'm006_no_signing_secret'"))


def test_an_older_database_loses_its_signing_secret_to_the_last_byte(tmp_path: Path) -> None:
    path, secret = tmp_path / "store.db", secrets.token_bytes(32)
    old = Database(f"sqlite:///{path}")
    old.write(as_of_an_older_version, secret)
    old.write(clock.keep)  # it lies beside the secret, on the same page
    old.close()
    files = [path, path.with_name("store.db-wal"), path.with_name("store.db-shm")]
    assert secret in b"".join(each.read_bytes() for each in files if each.exists())
    new = Database(f"sqlite:///{path}")
    kept = b"".join(each.read_bytes() for each in files if each.exists())
    assert secret not in kept
    assert secret[:8] not in kept
    new.close()


def _file_in_use(url: str) -> Path:
    """The file that SQLite itself opens; the connection is closed, not kept in a pool."""
    with create_engine(url, poolclass=NullPool).connect() as conn:
        return Path(conn.execute(text("pragma database_list")).one().file)


def _modes(path: Path) -> set[int]:
    return {stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob(f"{path.name}*")}


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:///file:{}?uri=true"])
@pytest.mark.parametrize("is_old", [False, True])
def test_only_its_owner_reads_an_sqlite_file(form: str, is_old: bool, tmp_path: Path) -> None:
    path = tmp_path / "anywhere.db"
    before = os.umask(0o022)
    try:
        if is_old:
            Database(form.format(path)).close()
            path.chmod(0o644)
        database = Database(form.format(path))
        assert len(list(tmp_path.glob("anywhere.db*"))) == 3, "with the log and its index"
        assert _modes(path) == {0o600}
        database.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize("is_old", [False, True])
def test_the_reserve_beside_an_sqlite_file_is_for_its_owner_too(
    is_old: bool, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    reserve = path.with_name("store.db-reserve")
    before = os.umask(0o022)
    try:
        if is_old:
            Database(f"sqlite:///{path}").close()
            reserve.touch(0o644)
        database = Database(f"sqlite:///{path}", reserve_bytes=1 << 20)
        asyncio.run(database.arestore_reserve())
        assert reserve.stat().st_size == 1 << 20
        assert stat.S_IMODE(reserve.stat().st_mode) == 0o600
        database.close()
    finally:
        os.umask(before)


def test_an_sqlite_file_that_others_read_and_we_cannot_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "foreign.db"
    path.touch(0o644)

    def refuse(_: Path, __: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}") as refusal:
        Database(f"sqlite:///{path}")
    assert refusal.value.code == "database-not-private"


@pytest.mark.parametrize(
    "form",
    [
        "sqlite:///{}",
        "sqlite:///file:{}?uri=true",
        "sqlite:///file://{}?uri=1&cache=private",
        "sqlite:///file://localhost{}?mode=rwc&uri=true",
    ],
)
@pytest.mark.parametrize("name", ["plain.db", "with space.db", "of 100%25.db"])
def test_the_file_is_the_one_that_sqlite_uses(form: str, name: str, tmp_path: Path) -> None:
    url = form.format(tmp_path / name)
    assert sqlite_file(url) == _file_in_use(url)


def test_a_name_that_only_looks_like_a_uri_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///file:x.db", "sqlite:///file:x.db?uri=false"):
        found = sqlite_file(url)
        assert found is not None
        assert found.absolute() == _file_in_use(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:x?mode=memory&uri=true",
        "postgresql://host/name",
    ],
)
def test_other_databases_have_no_file(url: str) -> None:
    assert sqlite_file(url) is None


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_the_reserve_lies_beside_the_file(form: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    db = Database(form.format(path), reserve_bytes=1 << 20)
    asyncio.run(db.arestore_reserve())
    db.close()
    assert path.with_name("store.db-reserve").stat().st_size > 0
