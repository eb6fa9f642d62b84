"""Schema changes: small numbered functions, each applied once and recorded by name.

A released migration is never edited; a change of the schema is a new function at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Connection, Float, MetaData, String, Table, inspect, select, text

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


def m002_sizes_on_disk(conn: Connection) -> None:
    """How much each tenant's recovery snapshots and ephemeral samplers take."""
    for column in (schema.models.c.snapshot_bytes, schema.sampling_sessions.c.size_bytes):
        _add_column(conn, column)
    for index in (
        schema.sessions_open,
        schema.models_on_disk,
        schema.samplers_on_disk,
        schema.checkpoints_on_disk,
    ):
        index.create(conn, checkfirst=True)


MIGRATIONS: list[Callable[[Connection], None]] = [m001_first_tables, m002_sizes_on_disk]


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


def _add_column(conn: Connection, column: Column[Any]) -> None:
    """Adds a nullable column unless the table has it: a new database is made with all of them."""
    known = {each["name"] for each in inspect(conn).get_columns(column.table.name)}
    if column.name not in known:
        kind = column.type.compile(conn.dialect)
        conn.execute(text(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}"))
