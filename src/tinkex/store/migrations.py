"""Schema changes: small numbered functions, each applied once and recorded by name.

A released migration is never edited; a change of the schema is a new function at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Connection, Float, MetaData, String, Table, inspect, select, text

from tinkex.errors import ConfigError
from tinkex.store import leases, schema
from tinkex.version import __version__

_log = Table(
    "migrations",
    MetaData(),
    Column("name", String(64), primary_key=True),
    Column("applied_at", Float, nullable=False),
)


def m001_first_tables(conn: Connection) -> None:
    """Creates the tables of the first release."""
    schema.metadata.create_all(conn)


def m002_sizes_on_disk(conn: Connection) -> None:
    """Adds the sizes of each tenant's recovery snapshots and ephemeral samplers."""
    for column in (schema.models.c.snapshot_bytes, schema.sampling_sessions.c.size_bytes):
        _add_column(conn, column)
    for index in (
        schema.sessions_open,
        schema.models_on_disk,
        schema.samplers_on_disk,
        schema.checkpoints_on_disk,
    ):
        index.create(conn, checkfirst=True)


def m003_marks_of_what_was_trimmed(conn: Connection) -> None:
    """Adds marks of trimmed logs, samples and ended sessions, and sizes of results."""
    schema.sample_marks.create(conn, checkfirst=True)
    for column in (
        schema.models.c.trimmed_seq,
        schema.sessions.c.trimmed_at,
        schema.sampling_sessions.c.used_at,
    ):
        _add_column(conn, column)
    if _add_column(conn, schema.results.c.size_bytes):
        conn.execute(text("UPDATE results SET size_bytes = length(body)"))
    conn.execute(text("DROP INDEX IF EXISTS results_by_age"))
    for index in schema.results.indexes:
        index.create(conn, checkfirst=True)
    if conn.dialect.name == "postgresql":
        # Rows of these come and go all day; the default lets a fifth of a table be dead.
        for table in ("operations", "results", "samples"):
            conn.execute(text(f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05)"))


def m004_deletions(conn: Connection) -> None:
    """Adds the table of recently deleted checkpoints."""
    schema.deletions.create(conn, checkfirst=True)


def m005_digests_of_checkpoints(conn: Connection) -> None:
    """Adds the digest of a checkpoint's folder; older checkpoints have none."""
    _add_column(conn, schema.checkpoints.c.digest)


def m006_no_signing_secret(conn: Connection) -> None:
    """Removes the secret that signed tokens: it lies in a file now, and this one is invalid."""
    is_sqlite = conn.dialect.name == "sqlite"
    if is_sqlite:  # deleted bytes are overwritten with zeros
        conn.execute(text("PRAGMA secure_delete=ON"))
    conn.execute(text("DELETE FROM settings WHERE name = 'signing'"))
    if is_sqlite:
        conn.execute(text("PRAGMA secure_delete=FAST"))


def m007_last_use_of_keys(conn: Connection) -> None:
    """Adds the time of a key's last use; earlier uses are unknown."""
    _add_column(conn, schema.keys.c.used_at)


def m008_leases(conn: Connection) -> None:
    """Adds the leader's lease; a server on PostgreSQL has created this table before (`leases`)."""
    leases.ensure_table(conn)


def m009_series_and_usage(conn: Connection) -> None:
    """Adds series of metrics, names and chains of runs, and usage by key, run and day."""
    for table in (schema.run_points, schema.usage):
        table.create(conn, checkfirst=True)
    of_models = ("key_id", "name", "tags", "root_id", "resumed_from", "first_point")
    for table, names in (
        (schema.models, (*of_models, "series", "logged")),
        (schema.operations, ("key_id",)),
        (schema.samples, ("key_id", "run_id")),
        (schema.checkpoints, ("at_point", "at_step", "at_tokens")),
    ):
        for name in names:
            _add_column(conn, table.c[name])
    schema.models_by_root.create(conn, checkfirst=True)


def m010_custom_losses(conn: Connection) -> None:
    """Adds losses that clients upload."""
    schema.custom_losses.create(conn, checkfirst=True)


MIGRATIONS: list[Callable[[Connection], None]] = [
    m001_first_tables,
    m002_sizes_on_disk,
    m003_marks_of_what_was_trimmed,
    m004_deletions,
    m005_digests_of_checkpoints,
    m006_no_signing_secret,
    m007_last_use_of_keys,
    m008_leases,
    m009_series_and_usage,
    m010_custom_losses,
]


def migrate(conn: Connection) -> list[str]:
    """Applies missing migrations and returns their names, in order; none on an up-to-date database.

    Raises:
        ConfigError: a newer version has migrated it. Nothing is changed then.
    """
    if not inspect(conn).has_table("migrations"):
        _log.create(conn, checkfirst=True)
    known = set(conn.execute(select(_log.c.name)).scalars())
    _refuse_newer_than_known(known)
    applied = []
    for step in MIGRATIONS:
        if step.__name__ in known:
            continue
        step(conn)
        conn.execute(_log.insert().values(name=step.__name__, applied_at=time.time()))
        applied.append(step.__name__)
    return applied


def refuse_newer(conn: Connection) -> None:
    """Returns if this version can read the database, or can after `migrate`.

    Raises:
        ConfigError: a newer version has migrated it.
    """
    if inspect(conn).has_table("migrations"):
        _refuse_newer_than_known(set(conn.execute(select(_log.c.name)).scalars()))


def _refuse_newer_than_known(known: set[str]) -> None:
    """Refuses a schema this version does not know: it might write rows the newer one misreads."""
    newer = sorted(known - {step.__name__ for step in MIGRATIONS})
    if newer:
        raise ConfigError(
            f"The database was made by a newer version of Tinkex: it has the schema change "
            f"{newer[0]!r}, which version {__version__} does not know.",
            hint="Upgrade Tinkex, or choose another --data-dir or --database-url.",
            code="newer-database",
        )


def _add_column(conn: Connection, column: Column[Any]) -> bool:
    """Adds a nullable column; returns whether it was missing: a new database has all of them."""
    known = {each["name"] for each in inspect(conn).get_columns(column.table.name)}
    if column.name in known:
        return False
    kind = column.type.compile(conn.dialect)
    conn.execute(text(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}"))
    return True
