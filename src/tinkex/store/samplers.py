"""Sampling sessions: a base model, a saved sampler, or an ephemeral snapshot to sample from."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, func, select, update

from tinkex.store.clock import steady_now
from tinkex.store.schema import sampling_sessions, sessions

_AT_ONCE = 500  # names in one query


class SamplerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling session as stored.

    With `checkpoint_id` it reads a saved sampler; with `model_id` it is an ephemeral snapshot of
    that model, whose weights lie in `folder` once written; with neither it is the base model.
    """

    sampling_session_id: str
    owner: str
    session_id: str
    base_model: str
    engine_model: str
    model_path: str | None = None
    checkpoint_id: str | None = None
    model_id: str | None = None
    folder: str | None = None
    size_bytes: int | None = None
    num_clients: int = 1
    created_at: float
    used_at: float | None = None
    freed_at: float | None = None


def insert(conn: Connection, sampler: SamplerRecord) -> SamplerRecord:
    """Inserts the sampling session; one that exists already is kept and returned."""
    known = get(conn, sampler.owner, sampler.sampling_session_id)
    if known is not None:
        return known
    conn.execute(sampling_sessions.insert().values(**msgspec.structs.asdict(sampler)))
    return sampler


def get(conn: Connection, owner: str, sampling_session_id: str) -> SamplerRecord | None:
    """Returns the owner's sampling session."""
    query = select(sampling_sessions).where(
        sampling_sessions.c.sampling_session_id == sampling_session_id,
        sampling_sessions.c.owner == owner,
    )
    row = conn.execute(query).first()
    return None if row is None else SamplerRecord(**row._mapping)


def join(conn: Connection, owner: str, sampling_session_id: str) -> int | None:
    """Returns a new client number of the session (the first one is 0)."""
    sampler = get(conn, owner, sampling_session_id)
    if sampler is None:
        return None
    conn.execute(
        update(sampling_sessions)
        .where(sampling_sessions.c.sampling_session_id == sampling_session_id)
        .values(num_clients=sampler.num_clients + 1)
    )
    return sampler.num_clients


def free_session(conn: Connection, session_id: str) -> list[SamplerRecord]:
    """Frees the session's ephemeral samplers, which may not be used any more."""
    where = (
        sampling_sessions.c.session_id == session_id,
        sampling_sessions.c.model_id.is_not(None),
        sampling_sessions.c.freed_at.is_(None),
    )
    freed = [
        SamplerRecord(**row._mapping)
        for row in conn.execute(select(sampling_sessions).where(*where))
    ]
    ended = {"freed_at": steady_now(), "size_bytes": None}
    conn.execute(update(sampling_sessions).where(*where).values(**ended))
    return freed


def free_of_ended_sessions(conn: Connection) -> None:
    """Frees the samplers of sessions that ended just before a crash."""
    ended = select(sessions.c.session_id).where(sessions.c.finished_at.is_not(None))
    conn.execute(
        update(sampling_sessions)
        .where(
            sampling_sessions.c.session_id.in_(ended),
            sampling_sessions.c.model_id.is_not(None),
            sampling_sessions.c.freed_at.is_(None),
        )
        .values(freed_at=steady_now(), size_bytes=None)
    )


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """When a sampling session's client last sent a request, and whether its session is over."""

    sampling_session_id: str
    session_id: str
    heartbeat_at: float
    finished_at: float | None


def lives(conn: Connection, sampling_session_ids: list[str]) -> list[Life]:
    """Returns the last use of these sampling sessions, and whether their sessions are over."""
    columns = (
        sampling_sessions.c.sampling_session_id,
        sessions.c.session_id,
        sessions.c.heartbeat_at,
        sessions.c.finished_at,
    )
    query = select(*columns).join(sessions, sessions.c.session_id == sampling_sessions.c.session_id)
    found: list[Life] = []
    for start in range(0, len(sampling_session_ids), _AT_ONCE):
        some = sampling_session_ids[start : start + _AT_ONCE]
        rows = conn.execute(query.where(sampling_sessions.c.sampling_session_id.in_(some)))
        found += [Life(**row._mapping) for row in rows]
    return found


def record_size(conn: Connection, sampling_session_id: str, size_bytes: int) -> bool:
    """Records the bytes of the sampler's weights on disk; returns whether it is still in use."""
    done = conn.execute(
        update(sampling_sessions)
        .where(
            sampling_sessions.c.sampling_session_id == sampling_session_id,
            sampling_sessions.c.freed_at.is_(None),
        )
        .values(size_bytes=size_bytes)
    )
    return done.rowcount > 0


def record_uses(conn: Connection, uses: dict[str, float]) -> None:
    """Records when each sampling session was last used."""
    for sampling_session_id, at in uses.items():
        conn.execute(
            update(sampling_sessions)
            .where(sampling_sessions.c.sampling_session_id == sampling_session_id)
            .values(used_at=at)
        )


def ephemeral(conn: Connection) -> list[SamplerRecord]:
    """Returns every ephemeral sampler in use, the one used last first."""
    last_used = func.coalesce(sampling_sessions.c.used_at, sampling_sessions.c.created_at)
    query = (
        select(sampling_sessions)
        .where(sampling_sessions.c.model_id.is_not(None), sampling_sessions.c.freed_at.is_(None))
        .order_by(last_used.desc())
    )
    return [SamplerRecord(**row._mapping) for row in conn.execute(query)]


def free(conn: Connection, sampling_session_ids: list[str]) -> None:
    """Ends these sampling sessions; they may not be used any more."""
    where = sampling_sessions.c.sampling_session_id.in_(sampling_session_ids)
    conn.execute(
        update(sampling_sessions).where(where).values(freed_at=steady_now(), size_bytes=None)
    )


def live_folders(conn: Connection) -> set[str]:
    """Returns the folders of ephemeral samplers in use."""
    query = select(sampling_sessions.c.folder).where(
        sampling_sessions.c.folder.is_not(None), sampling_sessions.c.freed_at.is_(None)
    )
    return {folder for folder in conn.execute(query).scalars() if folder}
