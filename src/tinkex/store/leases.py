"""The leader's lease: one row that says which server may write to the database, and until when.

Each server that takes the lease raises its epoch. A leader locks the row under its own epoch in
every transaction it commits (`lock_epoch`), and a server that takes over updates the same row: so
each commit of the old leader comes before the takeover, or it finds no row and is not made. Time is
the database's, the one clock that all servers share. Tests give another `now`.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    bindparam,
    cast,
    extract,
    func,
    literal,
    select,
    update,
)

from tinkex.store.compiled_sql import Prepared
from tinkex.store.schema import leases

__all__ = [
    "LeaseHolder",
    "LeaseRecord",
    "ensure_table",
    "lock_epoch",
    "read",
    "release",
    "renew",
    "take",
]

_LEADER = "leader"
_DATABASE_TIME: ColumnElement[float] = cast(extract("epoch", func.clock_timestamp()), Float)
_IS_LEADER = leases.c.name == _LEADER


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A server that wants the lease: its id, and the host and process where it runs."""

    holder: str
    host: str
    pid: int


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The lease's row. `holder` and the fields after it are None before a server first
    takes the lease."""

    epoch: int
    store_id: str
    expires_at: float
    holder: str | None
    host: str | None
    pid: int | None
    since: float | None


def ensure_table(conn: Connection) -> None:
    """Creates the table and its row unless they exist."""
    leases.create(conn, checkfirst=True)
    if conn.execute(select(leases.c.epoch).where(_IS_LEADER)).first() is None:
        first = {"name": _LEADER, "epoch": 0, "store_id": uuid.uuid4().hex, "expires_at": 0.0}
        conn.execute(leases.insert().values(first))


def read(conn: Connection) -> LeaseRecord:
    """Returns the present lease."""
    columns = [leases.c[field.name] for field in msgspec.structs.fields(LeaseRecord)]
    row = conn.execute(select(*columns).where(_IS_LEADER)).one()
    return LeaseRecord(**row._mapping)


def take(
    conn: Connection, holder: LeaseHolder, life_s: float, now: float | None = None
) -> int | None:
    """Takes the lease for the holder and returns its epoch; None while another server holds it."""
    time = _time(now)
    values: dict[str, Any] = {
        **msgspec.structs.asdict(holder),
        "epoch": leases.c.epoch + 1,
        "since": time,
        "expires_at": time + life_s,
    }
    free = update(leases).where(_IS_LEADER, leases.c.expires_at <= time).values(values)
    epoch: int | None = conn.execute(free.returning(leases.c.epoch)).scalar()
    return epoch


def renew(conn: Connection, epoch: int, life_s: float, now: float | None = None) -> bool:
    """Renews the lease for `life_s` from now; returns whether it still has this epoch.

    One that has expired and that no other server has taken is renewed too.
    """
    expires_at = _time(now) + life_s
    mine = update(leases).where(_IS_LEADER, leases.c.epoch == epoch)
    return bool(conn.execute(mine.values(expires_at=expires_at)).rowcount)


def release(conn: Connection, epoch: int) -> bool:
    """Releases the lease, so that another server may take it at once; returns whether it
    still had this epoch."""
    mine = update(leases).where(_IS_LEADER, leases.c.epoch == epoch)
    return bool(conn.execute(mine.values(expires_at=0.0)).rowcount)


def lock_epoch(conn: Connection, epoch: int) -> bool:
    """Returns whether the lease has this epoch, and locks it until the transaction ends."""
    return bool(_LOCK_EPOCH.rows(conn, epoch=epoch))


_LOCK_EPOCH = Prepared(
    select(leases.c.epoch)
    .where(_IS_LEADER, leases.c.epoch == bindparam("epoch"))
    .with_for_update(read=True)
)


def _time(now: float | None) -> ColumnElement[float]:
    return _DATABASE_TIME if now is None else literal(now, Float)
