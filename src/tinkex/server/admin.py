"""What an operator does beside a running server: keys and owners, and its signing secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.errors import NotFound
from tinkex.server.gate import signing_secret
from tinkex.store import Database, keys, owners
from tinkex.store.opening import open_database
from tinkex.store.owners import Owner

__all__ = [
    "KeyInfo",
    "MadeKey",
    "Owner",
    "create_key",
    "find_key",
    "list_keys",
    "list_owners",
    "revoke_key",
    "rotate_signing",
]

_OWNERS_NAMED = 8  # in an error


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as an operator sees it: never the key, only its last four characters."""

    key_id: int
    name: str
    owner: str
    tail: str
    created_at: float
    used_at: float | None
    revoked_at: float | None


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key, which is shown here and nowhere else, its record, and whose work it sees."""

    key: str
    info: KeyInfo
    owner: Owner


def create_key(
    data_dir: Path,
    database_url: str | None,
    *,
    name: str,
    owner: str | None = None,
    is_new_owner: bool = False,
) -> MadeKey:
    """Makes a key. Keys of one owner see the same work.

    Without `owner` it belongs to the only owner there is, or on a fresh server to the person at
    this machine. `is_new_owner` makes an owner that has no work yet, under a made-up name or
    `owner`.

    Raises:
        ConfigError: there are several owners and none was chosen, or the one to make is there.
    """
    key = keys.new_key()

    def make(conn: Connection) -> MadeKey:
        chosen = _choose_owner(conn, owner, is_new_owner)
        info = _info(keys.add(conn, key, name=name, owner=chosen))
        whose = next(each for each in owners.list_all(conn) if each.owner == chosen)
        return MadeKey(key=key, info=info, owner=whose)

    with _store(data_dir, database_url) as db:
        return db.write(make)


def _choose_owner(conn: Connection, owner: str | None, is_new: bool) -> str:
    known = [each.owner for each in owners.list_all(conn)]
    if is_new and owner in known:
        raise ConfigError(
            f"There is an owner {owner!r} already.",
            hint="Leave out --new-owner for a key to that owner's work, or choose another name.",
        )
    if owner is not None or is_new:
        return owner or owners.new_owner()
    chosen = owners.default_owner(conn)
    if chosen is None:
        shown = ", ".join(known[:_OWNERS_NAMED]) + (", ..." if len(known) > _OWNERS_NAMED else "")
        raise ConfigError(
            f"This server has {len(known)} owners ({shown}): whose work should the key see?",
            hint="Give --owner NAME for a key to that owner's work, or --new-owner for one that "
            "sees none of theirs. 'tinkex keys list' shows who has what.",
        )
    return chosen


def list_owners(data_dir: Path, database_url: str | None) -> list[Owner]:
    """All owners, in the order of their first keys."""
    with _store(data_dir, database_url) as db:
        return db.read(owners.list_all)


def list_keys(data_dir: Path, database_url: str | None) -> list[KeyInfo]:
    """All keys, oldest first."""
    with _store(data_dir, database_url) as db:
        return [_info(key) for key in db.read(keys.list_all)]


def find_key(data_dir: Path, database_url: str | None, key: str) -> KeyInfo | None:
    """The record of a key that is in use here; None if there is no such key."""
    with _store(data_dir, database_url) as db:
        found = db.read(keys.find, keys.hash_key(key))
    return None if found is None or found.revoked_at is not None else _info(found)


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


def rotate_signing(data_dir: Path, secret_file: Path | None, overlap_s: float) -> Path:
    """The file of the signing secret, with a new one in it; what the old one signed is accepted
    for `overlap_s` more seconds. A running server takes notice within two seconds.

    Raises:
        ConfigError: there is no such file, or it cannot be used.
    """
    named = None if secret_file is None else secret_file.resolve()  # a link stays one
    path = ServerConfig(data_dir=data_dir, signing_secret_file=named).path_of_signing_secret
    signing_secret.rotate(path, overlap_s)
    return path


@contextmanager
def _store(data_dir: Path, database_url: str | None) -> Iterator[Database]:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    config = ServerConfig(data_dir=data_dir, database_url=database_url)
    db = open_database(config.url_of_database, readers=1)
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
        used_at=key.used_at,
        revoked_at=key.revoked_at,
    )
