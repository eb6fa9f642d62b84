"""Inserting a row unless there is one with the same key, in one statement, on either database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from tinkex.store.compiled_sql import Prepared

__all__ = ["insert_if_absent"]


def insert_if_absent(table: Table, *columns: str) -> Prepared:
    """Returns a statement that returns a row if it inserted one, and none if a
    unique key is taken."""

    def build(dialect: str) -> Executable:
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        values: dict[str, BindParameter[Any]] = {name: bindparam(name) for name in columns}
        # Drivers disagree on how many rows such a statement touched, so it returns one.
        key = next(iter(table.primary_key.columns))
        return insert(table).values(**values).on_conflict_do_nothing().returning(key)

    return Prepared(build)
