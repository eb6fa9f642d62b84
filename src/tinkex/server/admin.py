"""What an operator does beside a running server: keys, straight in its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tinkex.server.config import ServerConfig
from tinkex.server.errors import NotFound
from tinkex.store import Database, keys


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as an operator sees it: never the key, only its last four characters."""

    key_id: int
    name: str
    owner: str
    tail: str
    created_at: float
    revoked_at: float | None


def create_key(
    data_dir: Path, database_url: str | None, *, name: str, owner: str | None = None
) -> tuple[str, KeyInfo]:
    """A new key, which is shown here and nowhere else, and its record.

    Keys of one owner see the same runs; without an owner the key gets one of its own.
    """
    key = keys.new_key()
    with _store(data_dir, database_url) as db:
        return key, _info(db.write(keys.add, key, name=name, owner=owner))


def list_keys(data_dir: Path, database_url: str | None) -> list[KeyInfo]:
    """All keys, oldest first."""
    with _store(data_dir, database_url) as db:
        return [_info(key) for key in db.read(keys.list_all)]


def revoke_key(data_dir: Path, database_url: str | None, key_id: int) -> None:
    """Refuses the key from now on; a running server takes notice within two seconds.

    Raises:
        NotFound: there is no such key in use.
    """
    with _store(data_dir, database_url) as db:
        if not db.write(keys.revoke, key_id):
            raise NotFound(
                f"There is no key {key_id} in use.", hint="'tinkex keys list' shows them."
            )


@contextmanager
def _store(data_dir: Path, database_url: str | None) -> Iterator[Database]:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    config = ServerConfig(data_dir=data_dir, database_url=database_url)
    db = Database(config.url_of_database, readers=1)
    try:
        yield db
    finally:
        db.close()


def _info(key: keys.Key) -> KeyInfo:
    return KeyInfo(
        key_id=key.key_id,
        name=key.name,
        owner=key.owner,
        tail=key.tail,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
    )
