"""The file of an SQLite database, by its SQLAlchemy URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import URL, make_url

__all__ = ["sqlite_file"]

_TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})  # as SQLAlchemy reads them


def sqlite_file(url: str | URL) -> Path | None:
    """Returns the file of an SQLite database; None for one in memory, and for another kind of
    database.

    With `uri=true` the name is a URI (`file:/x/y.db`, `file://localhost/x/y.db`); else it is taken
    as it stands.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    name = parsed.database or ""
    if name.startswith("file:") and str(parsed.query.get("uri", "")).lower() in _TRUE:
        if parsed.query.get("mode") == "memory":
            return None
        name = unquote(urlsplit(name).path)
    return None if name in {"", ":memory:"} else Path(name)
