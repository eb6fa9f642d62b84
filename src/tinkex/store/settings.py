"""Values the server makes once and keeps, such as the secret that signs download links."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, select

from tinkex.store.schema import settings


def secret(conn: Connection, name: str) -> bytes:
    """The 32 random bytes kept under `name`, made on first use. Must run as a write."""
    found = conn.execute(select(settings.c.value).where(settings.c.name == name)).scalar()
    if found is not None:
        return bytes(found)
    value = secrets.token_bytes(32)
    conn.execute(settings.insert().values(name=name, value=value))
    return value
