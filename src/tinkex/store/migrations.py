"""Schema changes: small numbered functions, each applied once and recorded by name.

A released migration is never edited; a change of the schema is a new function at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Column, Connection, Float, MetaData, String, Table, inspect, select

from tinkex.store import schema

_log = Table(
    "migrations",
    MetaData(),
    Column("name", String(64), primary_key=True),
    Column("applied_at", Float, nullable=False),
)


def m001_first_tables(conn: Connection) -> None:
    """Everything the first release knows."""
    schema.metadata.create_all(conn)


MIGRATIONS: list[Callable[[Connection], None]] = [m001_first_tables]


def migrate(conn: Connection) -> list[str]:
    """The names of the migrations applied now, in order; none on an up-to-date database."""
    if not inspect(conn).has_table("migrations"):
        _log.create(conn, checkfirst=True)
    known = set(conn.execute(select(_log.c.name)).scalars())
    applied = []
    for step in MIGRATIONS:
        if step.__name__ in known:
            continue
        step(conn)
        conn.execute(_log.insert().values(name=step.__name__, applied_at=time.time()))
        applied.append(step.__name__)
    return applied
