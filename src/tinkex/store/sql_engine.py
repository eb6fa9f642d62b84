"""Connections to a database: SQLite files are made private and set up for durable commits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url

from tinkex.store.private_file import make_private
from tinkex.store.sqlite_space import prepare

__all__ = ["BUSY_TIMEOUT_MS", "make_engine"]

BUSY_TIMEOUT_MS = 30_000


def make_engine(url: str, *, begin: str, pool_size: int, cache_kib: int) -> Engine:
    """An engine for an SQLAlchemy URL. `begin` and `cache_kib`, of a connection, are SQLite's."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(parsed, pool_size=pool_size, max_overflow=8, pool_pre_ping=True)
    make_private(parsed)
    engine = create_engine(
        parsed, pool_size=pool_size, max_overflow=64, connect_args={"check_same_thread": False}
    )
    event.listen(engine, "connect", lambda conn, _record: _prepare_sqlite(conn, cache_kib))
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(begin))
    return engine


def _prepare_sqlite(connection: Any, cache_kib: int) -> None:
    # The driver's own transaction handling is switched off, or savepoints would not work.
    connection.isolation_level = None
    cursor = connection.cursor()
    prepare(cursor)
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute(f"PRAGMA cache_size=-{cache_kib}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
