"""Keys of new tenants of a server that runs, made as `tinkex keys create` makes them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tinkex.store import Database, keys

__all__ = ["new_tenant_key"]


def new_tenant_key(data_dir: Path) -> str:
    """The key of a new tenant of the server with this data folder."""
    key = keys.new_key()
    with closing(Database(f"sqlite:///{data_dir / 'tinkex.db'}")) as db:
        db.write(keys.add, key, name="test")
    return key
