"""Retention of sessions: what an ended session held is dropped, and much later its records.

First goes what is large: the training state of their models, their samplers, their custom losses.
The run stays in the lists with its numbers, and every checkpoint stays until it is deleted or its
date comes. Much later the records go of runs that have no checkpoint.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update

from tinkex.store.clock import steady_now
from tinkex.store.schema import (
    checkpoints,
    custom_losses,
    models,
    operations,
    run_points,
    sample_marks,
    samples,
    sampling_sessions,
    sessions,
)

__all__ = ["Left", "drop_records", "sessions_to_trim", "trim_session"]

_AT_ONCE = 50
_SNAPSHOT = ("snapshot_seq", "snapshot_folder", "snapshot_bytes")


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """In-memory and on-disk remains of a trimmed session, for their holder to remove."""

    model_ids: list[str]
    sampling_session_ids: list[str]
    snapshot_folders: list[str]
    sampler_folders: list[str]


def sessions_to_trim(conn: Connection, before: float) -> list[str]:
    """Returns some sessions that ended before this time and still hold data."""
    query = (
        select(sessions.c.session_id)
        .where(sessions.c.finished_at < before, sessions.c.trimmed_at.is_(None))
        .order_by(sessions.c.finished_at)
        .limit(_AT_ONCE)
    )
    return list(conn.execute(query).scalars())


def trim_session(conn: Connection, session_id: str, before: float) -> Left | None:
    """Deletes the session's rows and returns its remains; None if the session was used since."""
    in_session = models.c.session_id == session_id
    runs = conn.execute(select(models.c.model_id, models.c.snapshot_folder).where(in_session)).all()
    of_session = sampling_sessions.c.session_id == session_id
    columns = (sampling_sessions.c.sampling_session_id, sampling_sessions.c.folder)
    samplers = conn.execute(select(*columns).where(of_session)).all()
    model_ids = [row.model_id for row in runs]
    sampler_ids = [row.sampling_session_id for row in samplers]
    if _is_used(conn, model_ids, sampler_ids, before):
        return None
    alive = models.c.state.in_(["creating", "ready", "unloaded"])
    conn.execute(update(models).where(in_session, alive).values(state="ended"))
    conn.execute(update(models).where(in_session).values(**dict.fromkeys(_SNAPSHOT)))
    has_body = and_(operations.c.model_id.in_(model_ids), operations.c.body.is_not(None))
    conn.execute(update(operations).where(has_body).values(body=None))
    conn.execute(delete(sample_marks).where(sample_marks.c.sampling_session_id.in_(sampler_ids)))
    conn.execute(delete(sampling_sessions).where(of_session))
    conn.execute(delete(custom_losses).where(custom_losses.c.session_id == session_id))
    trimmed = update(sessions).where(sessions.c.session_id == session_id)
    conn.execute(trimmed.values(trimmed_at=steady_now()))
    return Left(
        model_ids=model_ids,
        sampling_session_ids=sampler_ids,
        snapshot_folders=[row.snapshot_folder for row in runs if row.snapshot_folder],
        sampler_folders=[row.folder for row in samplers if row.folder],
    )


def drop_records(conn: Connection, before: float) -> int:
    """Deletes records of sessions that ended before this time; returns how many.

    A run with a checkpoint stays, and its session with it.
    """
    old = (
        select(sessions.c.session_id)
        .where(sessions.c.finished_at < before, sessions.c.trimmed_at.is_not(None))
        .where(~_keeps_checkpoint())
        .limit(_AT_ONCE)
    )
    ids = list(conn.execute(old).scalars())
    if ids:
        runs = select(models.c.model_id).where(models.c.session_id.in_(ids))
        conn.execute(delete(operations).where(operations.c.model_id.in_(runs)))
        conn.execute(delete(run_points).where(run_points.c.model_id.in_(runs)))
        conn.execute(delete(models).where(models.c.session_id.in_(ids)))
        conn.execute(delete(sessions).where(sessions.c.session_id.in_(ids)))
    return len(ids)


def _is_used(conn: Connection, model_ids: list[str], sampler_ids: list[str], before: float) -> bool:
    for rows, mine in (
        (operations, operations.c.model_id.in_(model_ids)),
        (samples, samples.c.sampling_session_id.in_(sampler_ids)),
    ):
        recent = or_(rows.c.state == "queued", rows.c.created_at >= before)
        if conn.execute(select(rows.c.request_id).where(mine, recent).limit(1)).first():
            return True
    return False


def _keeps_checkpoint() -> ColumnElement[bool]:
    return (
        select(checkpoints.c.checkpoint_id)
        .join(models, models.c.model_id == checkpoints.c.model_id)
        .where(models.c.session_id == sessions.c.session_id)
        .exists()
    )
