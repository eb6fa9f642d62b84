"""Series of metrics over a chain of runs: a run's own points, and before them those of the runs it
was resumed from, up to the checkpoint that it went on from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from tinkex.store import models
from tinkex.store.models import Model
from tinkex.store.run_points import Point, joined, list_after

__all__ = ["PointsPage", "page_of_points", "squeezed"]

_MAX_RUNS = 64


class PointsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Points in order, and whether more follow them."""

    points: list[Point]
    has_more: bool
    is_thinned: bool  # whether points of the series, before the last of these, are missing


class _Part(NamedTuple):
    """One run's part of the chain: its points above one number, up to another."""

    model_id: str
    first: int
    last: int | None


def page_of_points(
    conn: Connection, model: Model, after: int, *, limit: int, with_chain: bool
) -> PointsPage:
    """Returns the points with numbers above `after`, up to the limit."""
    points: list[Point] = []
    has_more, is_thinned = False, False
    for part in _parts(conn, model) if with_chain else [_own(model)]:
        if part.last is not None and part.last <= after:
            continue
        room = limit - len(points)
        found = list_after(
            conn, part.model_id, max(after, part.first), up_to=part.last, limit=room + 1
        )
        has_more = len(found) > room
        points += found[:room]
        if has_more:
            break
    if points:
        before = max(after, _parts(conn, model)[0].first if with_chain else _own(model).first)
        is_thinned = points[-1].number - before > len(points)
    return PointsPage(points=points, has_more=has_more, is_thinned=is_thinned)


def squeezed(points: Sequence[Point], most: int) -> list[Point]:
    """Returns at most this many points, each merged from as many neighbours."""
    if len(points) <= most:
        return list(points)
    bounds = [place * len(points) // most for place in range(most + 1)]
    return [joined(points[start:end]) for start, end in pairwise(bounds)]


def _own(model: Model) -> _Part:
    return _Part(model.model_id, model.first_point or 0, None)


def _parts(conn: Connection, model: Model) -> list[_Part]:
    """Returns the runs of the chain up to this one, oldest first, as far as the
    owner still has them."""
    parts = [_own(model)]
    while model.resumed_from is not None and len(parts) < _MAX_RUNS:
        last = model.first_point or 0
        before = models.get(conn, model.owner, model.resumed_from)
        if before is None:
            break
        parts.append(_Part(before.model_id, before.first_point or 0, last))
        model = before
    return parts[::-1]
