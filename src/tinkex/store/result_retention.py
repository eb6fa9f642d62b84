"""Retention: drops results by age and size, and the rows behind them.

Every function here deletes a slice and returns its size, so that writers wait for milliseconds and
not for a day's worth of rows. A row is deleted only after its result. How far a model's log, or a
client's samples, were trimmed is kept for good, as a mark.
"""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    delete,
    exists,
    func,
    select,
    update,
)

from tinkex.store.operations import REPLAYED
from tinkex.store.schema import (
    models,
    operations,
    results,
    sample_marks,
    samples,
    sampling_sessions,
)
from tinkex.types.requests import CLONE_STRIDE

__all__ = [
    "drop_freed_samplers",
    "drop_results",
    "models_to_trim",
    "results_to_drop",
    "trim_operations",
    "trim_samples",
]

SLICE = 500


def results_to_drop(conn: Connection, before: float, max_bytes: int) -> dict[str, float]:
    """Returns, for each owner with too much kept, the time up to which results must be dropped.

    Too much is what is older than `before`, and what makes the owner's results exceed the size.
    """
    columns = (func.min(results.c.created_at), func.sum(results.c.size_bytes))
    totals = select(results.c.owner, *columns).group_by(results.c.owner)
    limits = {}
    for owner, oldest, total in conn.execute(totals):
        limit = _end_of_room(conn, owner, max_bytes) if total > max_bytes else None
        limit = before if limit is None else max(before, limit)
        if oldest <= limit:
            limits[owner] = limit
    return limits


def _end_of_room(conn: Connection, owner: str, max_bytes: int) -> float | None:
    """Returns the time of the newest result that, with all younger ones, exceeds the size."""
    running = func.sum(results.c.size_bytes).over(
        order_by=(results.c.created_at.desc(), results.c.size_bytes.desc())
    )
    newest_first = (
        select(results.c.created_at, running.label("total"))
        .where(results.c.owner == owner)
        .subquery()
    )
    above = select(func.max(newest_first.c.created_at)).where(newest_first.c.total > max_bytes)
    return conn.execute(above).scalar()


def drop_results(conn: Connection, owner: str, up_to: float) -> int:
    """Drops the owner's results up to this time, the oldest first; returns how many."""
    oldest = (
        select(results.c.request_id)
        .where(results.c.owner == owner, results.c.created_at <= up_to)
        .order_by(results.c.created_at)
        .limit(SLICE)
    )
    ids = list(conn.execute(oldest).scalars())
    if ids:
        conn.execute(delete(results).where(results.c.request_id.in_(ids)))
    return len(ids)


def models_to_trim(conn: Connection, before: float, after: int) -> tuple[list[str], int | None]:
    """Returns models with operations from before this time, and where to continue, if anywhere.

    Walks the log in the order it was written, a slice from after the given number.
    """
    walk = (
        select(operations.c.number, operations.c.model_id, operations.c.created_at)
        .where(operations.c.number > after)
        .order_by(operations.c.number)
        .limit(SLICE)
    )
    rows = conn.execute(walk).all()
    old = [row for row in rows if row.created_at < before]
    found = list(dict.fromkeys(row.model_id for row in old))
    is_end = len(rows) < SLICE or len(old) < len(rows)
    return found, None if is_end else rows[-1].number


def trim_operations(conn: Connection, model_id: str, before: float) -> int:
    """Drops operations at the beginning of the model's log; returns how many.

    One stays, with all after it, if it waits, is young, still has its result, or would be replayed.
    """
    model = conn.execute(
        select(models.c.state, models.c.snapshot_seq).where(models.c.model_id == model_id)
    ).first()
    if model is None:
        return 0
    own = operations.c.model_id == model_id
    walk = (
        select(operations.c.seq_id, operations.c.state, operations.c.kind, operations.c.created_at)
        .add_columns(_has_result(operations).label("has_result"))
        .where(own, operations.c.seq_id >= 0)
        .order_by(operations.c.seq_id)
        .limit(SLICE)
    )
    replayed_after = (model.snapshot_seq or 0) if model.state == "ready" else None
    dropped, last = 0, None
    for row in conn.execute(walk):
        if not _may_go(row, before, replayed_after):
            break
        dropped, last = dropped + 1, row.seq_id
    if last is not None:
        conn.execute(delete(operations).where(own, operations.c.seq_id.between(0, last)))
        mark = update(models).where(models.c.model_id == model_id)
        conn.execute(mark.values(trimmed_seq=last))
    unnumbered = and_(own, operations.c.seq_id < 0, operations.c.created_at < before)
    conn.execute(delete(operations).where(unnumbered, ~_has_result(operations)))
    return dropped


def trim_samples(conn: Connection, before: float) -> int:
    """Drops finished sampling requests from before this time; returns how many.

    The last one to finish stays: the next completion is numbered after it.
    """
    newest = select(func.max(samples.c.completion)).scalar_subquery()
    walk = (
        select(
            samples.c.request_id,
            samples.c.sampling_session_id,
            samples.c.seq_id,
            samples.c.created_at,
            _has_result(samples).label("has_result"),
        )
        .where(samples.c.completion < newest)
        .order_by(samples.c.completion)
        .limit(SLICE)
    )
    gone = [row for row in conn.execute(walk) if row.created_at < before and not row.has_result]
    if not gone:
        return 0
    marks: dict[tuple[str, int], int] = {}
    for row in gone:
        key = (row.sampling_session_id, row.seq_id // CLONE_STRIDE)
        marks[key] = max(marks.get(key, 0), row.seq_id)
    for key, seq_id in marks.items():
        _mark(conn, *key, seq_id)
    ids = [row.request_id for row in gone]
    conn.execute(delete(samples).where(samples.c.request_id.in_(ids)))
    return len(gone)


def drop_freed_samplers(conn: Connection, before: float) -> int:
    """Deletes rows of samplers that were freed before this time; returns how many."""
    freed = (
        select(sampling_sessions.c.sampling_session_id)
        .where(sampling_sessions.c.freed_at < before)
        .limit(SLICE)
    )
    ids = list(conn.execute(freed).scalars())
    if ids:
        for table in (sample_marks, sampling_sessions):
            conn.execute(delete(table).where(table.c.sampling_session_id.in_(ids)))
    return len(ids)


def _may_go(row: Row[tuple[object, ...]], before: float, replayed_after: int | None) -> bool:
    if row.state == "queued" or row.created_at >= before or row.has_result:
        return False
    if replayed_after is None or row.state != "done" or row.kind not in REPLAYED:
        return True
    return bool(row.seq_id <= replayed_after)


def _has_result(table: Table) -> ColumnElement[bool]:
    return exists().where(results.c.request_id == table.c.request_id)


def _mark(conn: Connection, sampling_session_id: str, clone: int, seq_id: int) -> None:
    where = and_(
        sample_marks.c.sampling_session_id == sampling_session_id, sample_marks.c.clone == clone
    )
    known = conn.execute(select(sample_marks.c.trimmed_seq).where(where)).scalar()
    if known is None:
        values = {"sampling_session_id": sampling_session_id, "clone": clone}
        conn.execute(sample_marks.insert().values(**values, trimmed_seq=seq_id))
    elif known < seq_id:
        conn.execute(update(sample_marks).where(where).values(trimmed_seq=seq_id))
