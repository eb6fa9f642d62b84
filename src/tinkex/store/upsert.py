"""Inserting a row unless there is one with the same key, in one statement, on either database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_absent(conn: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Whether the row was inserted; False if one of its unique keys is taken."""
    insert = sqlite.insert if conn.dialect.name == "sqlite" else postgresql.insert
    # Drivers disagree on how many rows such a statement touched, so it is asked for one back.
    key = next(iter(table.primary_key.columns))
    statement = insert(table).on_conflict_do_nothing().returning(key)
    return conn.execute(statement, dict(row)).first() is not None
