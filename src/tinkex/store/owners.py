"""Owners: an owner has the runs, checkpoints and sessions that its keys give access to. It exists
as long as its keys' rows, revoked ones included."""

from __future__ import annotations

import os
import pwd
import secrets

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from tinkex.store.schema import checkpoints, keys, models

__all__ = ["MAX_CHARS", "Owner", "default_owner", "list_all", "local_owner", "new_owner"]

MAX_CHARS = 128  # of the column


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One owner, and the counts of its keys, runs and checkpoints."""

    owner: str
    num_keys: int  # not revoked
    num_runs: int
    num_checkpoints: int
    used_at: float | None  # when one of its keys was last used


def list_all(conn: Connection) -> list[Owner]:
    """Returns every owner, in the order of their first keys."""
    columns = (
        keys.c.owner,
        (func.count() - func.count(keys.c.revoked_at)).label("num_keys"),
        func.max(keys.c.used_at).label("used_at"),
    )
    query = select(*columns).group_by(keys.c.owner).order_by(func.min(keys.c.key_id))
    num_runs = _counts(conn, models.c.owner)
    num_checkpoints = _counts(conn, checkpoints.c.owner)
    return [
        Owner(
            **row._mapping,
            num_runs=num_runs.get(row.owner, 0),
            num_checkpoints=num_checkpoints.get(row.owner, 0),
        )
        for row in conn.execute(query)
    ]


def default_owner(conn: Connection) -> str | None:
    """Returns the owner of a key for which none was named: the only owner, or the local user if
    there is none yet. None if there are several, since the choice would be a guess."""
    known = list(conn.execute(select(keys.c.owner).distinct().limit(2)).scalars())
    if not known:
        return local_owner()
    return known[0] if len(known) == 1 else None


def local_owner() -> str:
    """Returns an owner named after the user this process runs as."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name[:MAX_CHARS]
    except KeyError:  # a container may run as a user without a name
        name = ""
    return name if name.isprintable() and name.strip() else "local"


def new_owner() -> str:
    """Returns a random name that no owner has."""
    return f"user-{secrets.token_hex(6)}"


def _counts(conn: Connection, owner: ColumnElement[str]) -> dict[str, int]:
    """Returns how many rows of a table each owner has."""
    query = select(owner.label("owner"), func.count().label("number")).group_by(owner)
    return {row.owner: row.number for row in conn.execute(query)}
