"""Sessions: one per client process that trains or samples."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, func, or_, select, true, update

from tinkex.store.clock import steady_now
from tinkex.store.schema import models, sampling_sessions, sessions


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session as stored."""

    session_id: str
    owner: str
    tags: list[str]
    user_metadata: dict[str, Any]
    project_id: str | None
    display_name: str | None
    sdk_version: str
    created_at: float
    heartbeat_at: float
    finished_at: float | None
    finish_reason: str | None
    finish_detail: str | None
    trimmed_at: float | None


def create(
    conn: Connection,
    owner: str,
    *,
    tags: list[str],
    user_metadata: dict[str, Any],
    sdk_version: str,
    project_id: str | None = None,
    display_name: str | None = None,
) -> str:
    """Creates a session and returns its id."""
    # Whole microseconds, as in the dates clients send back to go on after a session in a list.
    session_id, now = str(uuid.uuid4()), round(time.time(), 6)
    conn.execute(
        sessions.insert().values(
            session_id=session_id,
            owner=owner,
            tags=_dump(tags),
            user_metadata=_dump(user_metadata),
            sdk_version=sdk_version,
            project_id=project_id,
            display_name=display_name,
            created_at=now,
            heartbeat_at=steady_now(),
        )
    )
    return session_id


def get(conn: Connection, owner: str, session_id: str) -> Session | None:
    """Returns the owner's session."""
    query = select(sessions).where(sessions.c.session_id == session_id, sessions.c.owner == owner)
    row = conn.execute(query).first()
    return None if row is None else _to_session(row)


def list_ids(conn: Connection, owner: str, *, limit: int, offset: int) -> list[str]:
    """Returns the owner's session ids, newest first."""
    query = (
        select(sessions.c.session_id)
        .where(sessions.c.owner == owner)
        .order_by(sessions.c.created_at.desc(), sessions.c.session_id)
        .limit(limit)
        .offset(offset)
    )
    return list(conn.execute(query).scalars())


def members(conn: Connection, owner: str, session_id: str) -> tuple[list[str], list[str]]:
    """Returns the ids of the session's models and of its sampling sessions."""
    found = []
    for column, table in (
        (models.c.model_id, models),
        (sampling_sessions.c.sampling_session_id, sampling_sessions),
    ):
        query = (
            select(column)
            .where(table.c.session_id == session_id, table.c.owner == owner)
            .order_by(table.c.created_at)
        )
        found.append(list(conn.execute(query).scalars()))
    return found[0], found[1]


def finish(conn: Connection, owner: str, session_id: str, reason: str, detail: str | None) -> bool:
    """Ends the session; returns whether it was open. The first reason is kept."""
    result = conn.execute(
        update(sessions)
        .where(
            sessions.c.session_id == session_id,
            sessions.c.owner == owner,
            sessions.c.finished_at.is_(None),
        )
        .values(finished_at=steady_now(), finish_reason=reason, finish_detail=detail)
    )
    return result.rowcount > 0


def finish_silent(
    conn: Connection, before: float, alive: frozenset[str] = frozenset()
) -> list[str]:
    """Ends the sessions whose last sign of life is older than `before`, and returns them. Sessions
    in `alive` stay open: their heartbeats arrived but could not be written yet."""
    query = select(sessions.c.session_id).where(
        sessions.c.heartbeat_at < before, sessions.c.finished_at.is_(None)
    )
    silent = [each for each in conn.execute(query).scalars() if each not in alive]
    ended = {"finished_at": steady_now(), "finish_reason": "interrupted"}
    for session_id in silent:
        conn.execute(update(sessions).where(sessions.c.session_id == session_id).values(**ended))
    return silent


def record_heartbeats(conn: Connection, beats: dict[str, float]) -> None:
    """Records when each session last sent a request or heartbeat."""
    for session_id, at in beats.items():
        conn.execute(
            update(sessions).where(sessions.c.session_id == session_id).values(heartbeat_at=at)
        )


def set_project(conn: Connection, owner: str, session_id: str, project_id: str) -> bool:
    """Moves the session to the project; returns whether the owner has such a session."""
    result = conn.execute(
        update(sessions)
        .where(sessions.c.session_id == session_id, sessions.c.owner == owner)
        .values(project_id=project_id)
    )
    return result.rowcount > 0


def search(
    conn: Connection,
    owner: str,
    *,
    limit: int,
    session_id: str | None = None,
    project_ids: list[str] | None = None,
    display_name: str | None = None,
    before: tuple[float, str] | None = None,
) -> list[Session]:
    """Returns the owner's matching sessions, newest first, beginning after `before`.

    A display name matches if it contains all the given words. If both an id and a name are given,
    either may match.
    """
    query = select(sessions).where(sessions.c.owner == owner)
    named = []
    if session_id is not None:
        named.append(sessions.c.session_id == session_id)
    if display_name is not None:
        lower = func.lower(sessions.c.display_name)
        words = display_name.lower().split()
        named.append(and_(true(), *(lower.contains(word, autoescape=True) for word in words)))
    if named:
        query = query.where(or_(*named))
    if project_ids is not None:
        query = query.where(sessions.c.project_id.in_(project_ids))
    if before is not None:
        at, last_id = before
        query = query.where(
            (sessions.c.created_at < at)
            | ((sessions.c.created_at == at) & (sessions.c.session_id > last_id))
        )
    query = query.order_by(sessions.c.created_at.desc(), sessions.c.session_id).limit(limit)
    return [_to_session(row) for row in conn.execute(query)]


def _to_session(row: Row[tuple[object, ...]]) -> Session:
    values = dict(row._mapping)
    values["tags"] = msgspec.json.decode(values["tags"])
    values["user_metadata"] = msgspec.json.decode(values["user_metadata"])
    return Session(**values)


def _dump(value: object) -> str:
    return msgspec.json.encode(value).decode()
