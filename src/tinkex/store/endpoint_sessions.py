"""The session of an owner's requests to the OpenAI endpoint, whose clients open none themselves."""

from __future__ import annotations

from sqlalchemy import Connection, select

from tinkex.store import samplers, sessions
from tinkex.store.samplers import SamplerRecord
from tinkex.store.schema import sessions as table

__all__ = ["add_sampler", "open_session"]

_MARK = "openai-endpoint"  # in place of the version of an SDK


def open_session(conn: Connection, owner: str) -> str:
    """Returns the id of the owner's open session, created if there is none."""
    query = (
        select(table.c.session_id)
        .where(table.c.owner == owner, table.c.sdk_version == _MARK, table.c.finished_at.is_(None))
        .order_by(table.c.created_at.desc())
        .limit(1)
    )
    known = conn.execute(query).scalar()
    if known is not None:
        return str(known)
    return sessions.create(
        conn,
        owner,
        tags=[],
        user_metadata={},
        sdk_version=_MARK,
        display_name="OpenAI endpoint",
    )


def add_sampler(conn: Connection, sampler: SamplerRecord) -> tuple[SamplerRecord, int]:
    """Returns the sampling session, created if there is none, and a new client number in it."""
    kept = samplers.insert(conn, sampler)
    number = samplers.join(conn, kept.owner, kept.sampling_session_id)
    assert number is not None, "it was inserted in this transaction"
    return kept, number
