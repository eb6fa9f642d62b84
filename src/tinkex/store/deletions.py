"""Recent deletions: a client that lost the response repeats its request,
which must succeed again."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from tinkex.store.checkpoints import Checkpoint
from tinkex.store.clock import steady_now
from tinkex.store.schema import deletions

__all__ = ["forget", "note", "was_deleted"]


def note(conn: Connection, checkpoint: Checkpoint) -> None:
    """Records that the owner has just deleted the checkpoint."""
    conn.execute(delete(deletions).where(deletions.c.path == checkpoint.tinker_path))
    conn.execute(
        deletions.insert().values(
            path=checkpoint.tinker_path, owner=checkpoint.owner, deleted_at=steady_now()
        )
    )


def was_deleted(conn: Connection, owner: str, path: str) -> bool:
    """Whether the owner has recently deleted the checkpoint of this path."""
    query = select(deletions.c.path).where(deletions.c.path == path, deletions.c.owner == owner)
    return conn.execute(query).first() is not None


def forget(conn: Connection, before: float) -> None:
    """Drops records that no repeated request can need any more."""
    conn.execute(delete(deletions).where(deletions.c.deleted_at < before))
