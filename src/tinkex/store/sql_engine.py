"""Connections to a database: SQLite files are made private and set up for durable commits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url

from tinkex.store.private_file import make_private
from tinkex.store.sqlite_space import prepare

__all__ = ["BUSY_TIMEOUT_MS", "limit_idle", "make_engine", "make_lease_engine", "make_reader"]

BUSY_TIMEOUT_MS = 30_000


def make_engine(url: str, *, begin: str, pool_size: int, cache_kib: int) -> Engine:
    """Returns an engine for an SQLAlchemy URL. `begin` and `cache_kib`, per
    connection, are SQLite's."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(
            _with_driver(parsed), pool_size=pool_size, max_overflow=8, pool_pre_ping=True
        )
    make_private(parsed)
    engine = create_engine(
        parsed, pool_size=pool_size, max_overflow=64, connect_args={"check_same_thread": False}
    )
    event.listen(engine, "connect", lambda conn, _record: _prepare_sqlite(conn, cache_kib))
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(begin))
    return engine


def make_reader(url: str, *, pool_size: int, cache_kib: int) -> Engine:
    """Returns an engine for reading: all reads of one transaction are of one moment.

    SQLite's deferred transactions guarantee this; PostgreSQL's default ones do not.
    """
    engine = make_engine(url, begin="BEGIN", pool_size=pool_size, cache_kib=cache_kib)
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def make_lease_engine(url: str, life_s: float) -> Engine:
    """Returns an engine of one PostgreSQL connection, on which no step takes
    longer than `life_s`."""
    network = {
        "connect_timeout": max(2, int(life_s / 2)),
        "tcp_user_timeout": int(1000 * life_s),
        "keepalives_idle": max(1, int(life_s / 4)),
        "keepalives_interval": max(1, int(life_s / 4)),
        "keepalives_count": 3,
    }
    engine = create_engine(
        _with_driver(make_url(url)),
        pool_size=1,
        max_overflow=1,
        pool_pre_ping=True,
        connect_args=network,
    )
    _set_on_connect(
        engine,
        idle_in_transaction_session_timeout=life_s,
        lock_timeout=life_s / 4,
        statement_timeout=life_s / 2,
    )
    return engine


def limit_idle(engine: Engine, limit_s: float) -> None:
    """Has PostgreSQL end a connection that is idle for so long inside a transaction, so that the
    locks of a stopped process do not last."""
    _set_on_connect(engine, idle_in_transaction_session_timeout=limit_s)


def _with_driver(url: URL) -> URL:
    if url.drivername in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    return url


def _set_on_connect(engine: Engine, **seconds: float) -> None:
    """Sets PostgreSQL's timeouts on each new connection."""

    def prepare(connection: Any, _record: object) -> None:
        for name, value in seconds.items():
            connection.execute(f"SET {name} = {max(1, round(1000 * value))}")
        connection.commit()

    event.listen(engine, "connect", prepare)


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
