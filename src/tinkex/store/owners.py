"""Owners: whose runs, checkpoints and sessions a key sees. An owner exists as long as its keys'
rows do, revoked ones included."""

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
    """One owner, and how much there is of its work."""

    owner: str
    num_keys: int  # not revoked
    num_runs: int
    num_checkpoints: int
    used_at: float | None  # when one of its keys was last used


def list_all(conn: Connection) -> list[Owner]:
    """Every owner, in the order of their first keys."""
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
    """The owner of a key for which none was named: the only one there is, or the person at this
    machine where there is none yet. None where there are several: none of them may be guessed."""
    known = list(conn.execute(select(keys.c.owner).distinct().limit(2)).scalars())
    if not known:
        return local_owner()
    return known[0] if len(known) == 1 else None


def local_owner() -> str:
    """An owner named after the user this process runs as."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name[:MAX_CHARS]
    except KeyError:  # a container may run as a user without a name
        name = ""
    return name if name.isprintable() and name.strip() else "local"


def new_owner() -> str:
    """A made-up name that no owner has."""
    return f"user-{secrets.token_hex(6)}"


def _counts(conn: Connection, owner: ColumnElement[str]) -> dict[str, int]:
    """How many rows of a table each owner has."""
    query = select(owner.label("owner"), func.count().label("number")).group_by(owner)
    return {row.owner: row.number for row in conn.execute(query)}
