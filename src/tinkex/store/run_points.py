"""The points of runs' series of metrics, thinned as they grow.

A run has at most `MAX_POINTS`. When it comes near, neighbours among the older half of its points
are joined in pairs: the later one stays, with those metrics of the earlier one that it lacks. So
the newest points are as they were, older ones grow coarser with age, and no metric vanishes.

A run that was made from a checkpoint counts its points on from there, so that the points of a chain
of runs are in the order of their numbers. What adds points calls `thin` after every
`THIN_EVERY` of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, select
from sqlalchemy.dialects import sqlite

from tinkex.store.bulk_sql import BulkStatement, many_rows
from tinkex.store.compiled_sql import Prepared
from tinkex.store.run_series import PointBody
from tinkex.store.schema import models, run_points

__all__ = [
    "MAX_POINTS",
    "THIN_EVERY",
    "Point",
    "add",
    "joined",
    "last_number",
    "list_after",
    "thin",
]

MAX_POINTS = 2000
THIN_EVERY = 250
"""Points that one writer adds between two calls of `thin`; each run has two writers."""


class Point(msgspec.Struct, frozen=True):
    """One point, and its number in its run."""

    number: int
    body: PointBody


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PointBody).decode

_FIRST = select(func.coalesce(models.c.first_point, 0))


def _next_number(model_id: Any) -> ColumnElement[int]:
    """Returns the number after that of the run's last point."""
    mine = run_points.alias("mine")
    last = select(func.max(mine.c.number)).where(mine.c.model_id == model_id)
    first = _FIRST.where(models.c.model_id == model_id)
    return func.coalesce(last.scalar_subquery(), first.scalar_subquery(), 0) + 1


def _add_one() -> Prepared:
    model_id = bindparam("id", type_=run_points.c.model_id.type)
    body = bindparam("body", type_=run_points.c.body.type)
    return Prepared(
        run_points.insert()
        .from_select(["model_id", "number", "body"], select(model_id, _next_number(model_id), body))
        .returning(run_points.c.number)
    )


def _add_many() -> BulkStatement:
    new = many_rows(2).subquery("new")
    rows = select(new.c.column1, _next_number(new.c.column1), new.c.column2)
    return BulkStatement(
        sqlite.insert(run_points).from_select(["model_id", "number", "body"], rows)
    )


_ADD, _ADD_ALL = _add_one(), _add_many()


def add(conn: Connection, points: Mapping[str, PointBody]) -> None:
    """Adds one point to each of these runs."""
    rows = [(model_id, _encode(body)) for model_id, body in points.items()]
    if not _ADD_ALL.did_all(conn, rows):
        for model_id, body in rows:
            _ADD.rows(conn, id=model_id, body=body)


def last_number(conn: Connection, model_id: str) -> int:
    """Returns the number of the run's last point; if it has none, that of the run before it."""
    last = select(func.max(run_points.c.number)).where(run_points.c.model_id == model_id)
    found = conn.execute(last).scalar()
    if found is None:
        found = conn.execute(_FIRST.where(models.c.model_id == model_id)).scalar()
    return int(found or 0)


def list_after(
    conn: Connection, model_id: str, after: int, *, up_to: int | None = None, limit: int
) -> list[Point]:
    """Returns the run's points with higher numbers, in order, up to one number."""
    query = (
        select(run_points.c.number, run_points.c.body)
        .where(run_points.c.model_id == model_id, run_points.c.number > after)
        .order_by(run_points.c.number)
        .limit(limit)
    )
    if up_to is not None:
        query = query.where(run_points.c.number <= up_to)
    return [Point(number, _decode(body)) for number, body in conn.execute(query)]


def thin(conn: Connection, model_id: str) -> None:
    """Merges older points in pairs if the run could have too many before the next call."""
    points = list_after(conn, model_id, -1, limit=MAX_POINTS)
    if len(points) + 2 * THIN_EVERY <= MAX_POINTS:
        return
    older = points[: len(points) // 2]
    pairs = [older[start : start + 2] for start in range(0, len(older), 2)]
    conn.execute(
        delete(run_points).where(
            run_points.c.model_id == model_id, run_points.c.number <= older[-1].number
        )
    )
    kept = [joined(pair) for pair in pairs]
    rows = [
        {"model_id": model_id, "number": each.number, "body": _encode(each.body)} for each in kept
    ]
    conn.execute(run_points.insert(), rows)


def joined(points: Sequence[Point]) -> Point:
    """Merges neighbouring points into the last, with those metrics of the others that it lacks."""
    metrics = {name: value for each in points for name, value in each.body.metrics.items()}
    last = points[-1]
    return Point(last.number, msgspec.structs.replace(last.body, metrics=metrics))
