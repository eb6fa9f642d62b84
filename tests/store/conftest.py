"""A fresh database for each test: an SQLite file, and PostgreSQL where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.postgres import each_database, empty_postgres_url, postgres_url
from tinkex.store import Database

__all__ = ["db", "each_database", "empty_postgres_url", "postgres_url"]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A fresh SQLite store."""
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    yield database
    database.close()
