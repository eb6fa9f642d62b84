"""API keys: only their SHA-256 is kept. A key belongs to an owner, whose rows it may see."""

from __future__ import annotations

import hashlib
import secrets
import time

import msgspec
from sqlalchemy import Connection, Row, delete, select, update

from tinkex.store.owners import new_owner
from tinkex.store.schema import keys

PREFIX = "tml-"  # the official client insists on it


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of a key; never the key itself."""

    key_id: int
    owner: str
    name: str
    note: str
    hash: bytes
    tail: str
    created_at: float
    revoked_at: float | None
    used_at: float | None


def new_key() -> str:
    """Returns a new random key."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> bytes:
    """Returns the stored hash of a key. A long random text needs no slow hash."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def add(conn: Connection, key: str, *, name: str, owner: str | None = None, note: str = "") -> Key:
    """Stores the key's record and returns it; an owner is made up if none is given. A key already
    stored is kept."""
    known = find(conn, hash_key(key))
    if known is not None:
        return known
    conn.execute(
        keys.insert().values(
            owner=owner or new_owner(),
            name=name,
            note=note,
            hash=hash_key(key),
            tail=key[-4:],
            created_at=time.time(),
        )
    )
    added = find(conn, hash_key(key))
    assert added is not None
    return added


def find(conn: Connection, digest: bytes) -> Key | None:
    """Returns the key with this hash, revoked or not."""
    row = conn.execute(select(keys).where(keys.c.hash == digest)).first()
    return None if row is None else _to_key(row)


def find_many(conn: Connection, digests: list[bytes]) -> dict[bytes, Key]:
    """Returns the keys with these hashes, revoked or not, as far as they exist."""
    rows = conn.execute(select(keys).where(keys.c.hash.in_(digests)))
    return {bytes(row.hash): _to_key(row) for row in rows}


def list_all(conn: Connection) -> list[Key]:
    """Returns every key, oldest first."""
    return [_to_key(row) for row in conn.execute(select(keys).order_by(keys.c.key_id))]


def list_in_use(conn: Connection, owner: str) -> list[Key]:
    """Returns the owner's keys that are not revoked, oldest first."""
    in_use = select(keys).where(keys.c.owner == owner, keys.c.revoked_at.is_(None))
    return [_to_key(row) for row in conn.execute(in_use.order_by(keys.c.key_id))]


def forget_revoked(conn: Connection, owner: str, *, keep: int) -> None:
    """Deletes the owner's revoked keys, except the `keep` newest."""
    revoked = select(keys.c.key_id).where(keys.c.owner == owner, keys.c.revoked_at.is_not(None))
    old = conn.execute(revoked.order_by(keys.c.key_id.desc()).offset(keep)).scalars().all()
    conn.execute(delete(keys).where(keys.c.key_id.in_(old)))


def revoke(conn: Connection, key_id: int) -> bool:
    """Revokes the key; returns whether it was in use."""
    result = conn.execute(
        update(keys)
        .where(keys.c.key_id == key_id, keys.c.revoked_at.is_(None))
        .values(revoked_at=time.time())
    )
    return result.rowcount > 0


def record_uses(conn: Connection, uses: dict[int, float]) -> None:
    """Records when each key was last used, by the wall clock."""
    for key_id, at in uses.items():
        conn.execute(update(keys).where(keys.c.key_id == key_id).values(used_at=at))


def _to_key(row: Row[tuple[object, ...]]) -> Key:
    return Key(**row._mapping)
