"""The depot that holds the folders which this database names.

The database has an id of its own, under which it claims a depot before anything is put there, and
notes afterwards that its folders are there. A crash in between does no harm.
"""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, select

from tinkex.store.schema import settings

__all__ = ["database_id", "is_depot_used", "record_depot_used"]

_ID = "database_id"
_USED = "depot_used"


def database_id(conn: Connection) -> str:
    """Returns the id of this database, made at the first call. Must run as a write."""
    known = _get(conn, _ID)
    if known is not None:
        return known.decode()
    made = uuid.uuid4().hex
    conn.execute(settings.insert().values(name=_ID, value=made.encode()))
    return made


def is_depot_used(conn: Connection) -> bool:
    """Returns whether the folders are in a depot."""
    return _get(conn, _USED) is not None


def record_depot_used(conn: Connection) -> None:
    """Records that the folders are in a depot from now on. Must run as a write."""
    if not is_depot_used(conn):
        conn.execute(settings.insert().values(name=_USED, value=b"1"))


def _get(conn: Connection, name: str) -> bytes | None:
    value = conn.execute(select(settings.c.value).where(settings.c.name == name)).scalar()
    return None if value is None else bytes(value)
