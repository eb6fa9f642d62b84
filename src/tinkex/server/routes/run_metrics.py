"""Names, tags and series of metrics of runs: what training measured, and what users log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import LimitExceeded, NotFound, Unprocessable, json_response
from tinkex.server.gate.limits import check_text
from tinkex.server.http.paging import number_of
from tinkex.server.routes.run_summaries import show_runs, some_runs
from tinkex.server.services import owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.run_names import check_tags
from tinkex.store import logged_metrics, models, run_chains
from tinkex.store.logged_metrics import LoggedCall
from tinkex.store.run_points import MAX_POINTS, Point
from tinkex.types.requests import LogMetricsRequest, UpdateRunRequest
from tinkex.types.runs import LogMetricsResponse, RunMetricsResponse
from tinkex.wire.limits import Limits

__all__ = ["ROUTES", "as_columns", "read_points"]

_PAGE = 1000
_MOST_SQUEEZED = 32 * MAX_POINTS
_MAX_PER_CALL = 128
_MAX_ID_CHARS = 64
_COUNTS = ("index", "step", "time", "tokens")


async def update_run(request: Request) -> Response:
    """The run with another name or other tags; the runs of its chain have them too."""
    services, me, run_id = services_of(request), owner(request), request.path_params["run_id"]
    limits = services.config.limits
    payload = await read_json(request, UpdateRunRequest, limits)
    changes: dict[str, str | dict[str, str] | None] = {}
    if payload.name is not None:
        check_text("name", payload.name, limits.max_name_chars)
        changes["name"] = payload.name or None
    if payload.tags is not None:
        check_tags(payload.tags, limits)
        changes["tags"] = payload.tags
    if not await services.db.awrite(models.rename, me, run_id, changes):
        raise _no_run(run_id)
    services.live.note_run(me, run_id)
    found = await services.db.aread(some_runs, me, [run_id])
    return json_response(show_runs(services, found)[0])


async def get_metrics(request: Request) -> Response:
    """Points of the run's metrics after a cursor, with those of the runs it was resumed from."""
    run_id, query = request.path_params["run_id"], request.query_params
    found = await services_of(request).db.aread(
        read_points,
        owner(request),
        run_id,
        after=number_of(request, "after", 0),
        max_points=number_of(request, "max_points", 0),
        with_chain=query.get("chain", "1") != "0",
    )
    if found is None:
        raise _no_run(run_id)
    points, has_more, is_thinned, cursor = found
    names = query["names"].split(",") if query.get("names") else None
    columns = as_columns(points, names)
    return json_response(
        RunMetricsResponse(
            names=[name for name in columns if name not in _COUNTS],
            columns=columns,
            cursor=cursor,
            has_more=has_more,
            thinned=is_thinned,
        )
    )


async def log_metrics(request: Request) -> Response:
    """Keeps numbers that the user logs as a point of the run's metrics."""
    services, me, run_id = services_of(request), owner(request), request.path_params["run_id"]
    payload = await read_json(request, LogMetricsRequest, services.config.limits)
    _check_logged(payload, services.config.limits)
    call = LoggedCall(
        metrics=payload.metrics,
        step=payload.step,
        after_seq=payload.after_seq,
        next_seq=services.scheduler.next_number(run_id),
        call_id=payload.log_id,
    )
    found = await services.db.awrite(logged_metrics.log, me, run_id, call)
    if found is None:
        raise _no_run(run_id)
    services.live.note_run(me, run_id)
    step, cursor = found
    return json_response(LogMetricsResponse(step=step, cursor=cursor))


def read_points(
    conn: Connection, me: str, run_id: str, *, after: int, max_points: int, with_chain: bool
) -> tuple[list[Point], bool, bool, int] | None:
    """Points of the run, whether there are more, whether some are missing, and the next cursor;
    None if the owner has no such run. With `max_points` all that there are, in so many points."""
    model = models.get(conn, me, run_id)
    if model is None:
        return None
    limit = _MOST_SQUEEZED if max_points else _PAGE
    page = run_chains.page_of_points(conn, model, after, limit=limit, with_chain=with_chain)
    points, is_thinned = page.points, page.is_thinned
    cursor = points[-1].number if points else after
    if max_points and len(points) > max_points:
        points, is_thinned = run_chains.squeezed(points, max_points), True
    return points, page.has_more, is_thinned, cursor


def as_columns(points: list[Point], names: list[str] | None) -> dict[str, list[Any]]:
    """The points column by column; of the metrics those named, or all that a point has."""
    if names is None:
        names = list(dict.fromkeys(name for each in points for name in each.body.metrics))
    columns: dict[str, list[Any]] = {
        "index": [each.number for each in points],
        "step": [each.body.step for each in points],
        "time": [each.body.time for each in points],
        "tokens": [each.body.tokens for each in points],
    }
    for name in names:
        if name not in _COUNTS:
            columns[name] = [each.body.metrics.get(name) for each in points]
    return columns


def _check_logged(payload: LogMetricsRequest, limits: Limits) -> None:
    if not payload.metrics:
        raise Unprocessable("metrics is empty.", hint="Log at least one number.")
    if len(payload.metrics) > _MAX_PER_CALL:
        raise LimitExceeded(
            f"metrics has {len(payload.metrics)} entries, above this server's limit of "
            f"{_MAX_PER_CALL} in one call."
        )
    for name in payload.metrics:
        check_text("a name in metrics", name, limits.max_name_chars)
        if not name or name in _COUNTS:
            raise Unprocessable(
                f"{name!r} cannot be the name of a logged metric.",
                hint=f"Use another one: a point has {', '.join(_COUNTS)} already.",
            )
    check_text("log_id", payload.log_id, _MAX_ID_CHARS)


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"There is no training run {run_id[:200]!r}.", code="unknown-run")


_RUN = "/training_runs/{run_id}"

ROUTES = [
    Route(_RUN, update_run, methods=["PATCH"]),
    Route(f"{_RUN}/metrics", get_metrics),
    Route(f"{_RUN}/metrics", log_metrics, methods=["POST"]),
]
