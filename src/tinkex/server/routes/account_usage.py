"""Usage of the caller's account, by day, key or run."""

from __future__ import annotations

from datetime import date
from typing import cast, get_args

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import Unprocessable, json_response
from tinkex.server.services import owner, services_of
from tinkex.store import quotas, usage_sums
from tinkex.store.usage_sums import Grouping, UsageSums
from tinkex.types.runs import UsageItem, UsageResponse

__all__ = ["ROUTES"]


async def get_usage(request: Request) -> Response:
    """What the caller's account used, or one of its runs: tokens, engine time and bytes."""
    by = request.query_params.get("by", "day")
    if by not in get_args(Grouping):
        raise Unprocessable(
            f"by={by[:40]!r} is no grouping.", hint=f"Use one of {', '.join(get_args(Grouping))}."
        )
    first, last, run_id = (
        _day(request, "from"),
        _day(request, "to"),
        request.query_params.get("run"),
    )
    db, group = services_of(request).db, cast("Grouping", by)
    if run_id is None:
        rows = await db.aread(_usage, owner(request), group, first, last)
    else:
        rows = await db.aread(_usage_of_run, owner(request), group, first, last, run_id)
    return json_response(UsageResponse(rows=rows))


def _usage(
    conn: Connection, me: str, by: Grouping, first: date | None, last: date | None
) -> list[UsageItem]:
    sums = usage_sums.list_by(conn, me, by, first, last)
    if by == "day":
        today = usage_sums.day_of(usage_sums.today())
        kept = {today: quotas.disk_use(conn, me).total}
        rows = [_item(each, kept.get(each.day, each.bytes_kept)) for each in sums if each.day]
    elif by == "key":
        of_key = quotas.bytes_by_key(conn, me)
        rows = [_item(each, of_key.get(each.key_id, 0)) for each in sums]
    elif by == "run":
        of_run = quotas.bytes_by_run(conn, me)
        rows = [_item(each, of_run.get(each.run_id or "", 0)) for each in sums]
    else:
        rows = [_item(each, quotas.disk_use(conn, me).total) for each in sums]
    return rows if by == "total" else [each for each in rows if _is_any(each)]


def _usage_of_run(
    conn: Connection, me: str, by: Grouping, first: date | None, last: date | None, run_id: str
) -> list[UsageItem]:
    """The rows of one run. By run and in all they have what it keeps now."""
    sums = usage_sums.list_by(conn, me, by, first, last, run_id)
    kept = quotas.bytes_by_run(conn, me).get(run_id, 0) if by in ("run", "total") else 0
    return [_item(each, kept) for each in sums]


def _item(sums: UsageSums, bytes_kept: int) -> UsageItem:
    return UsageItem(
        day=None if sums.day is None else sums.day.isoformat(),
        key=sums.key_name,
        key_id=sums.key_id,
        run=sums.run_id,
        tokens_trained=sums.tokens_trained,
        tokens_sampled=sums.tokens_sampled,
        tokens_scored=sums.tokens_scored,
        tokens_cached=sums.tokens_cached,
        engine_seconds=round(sums.engine_s, 6),
        bytes_kept=bytes_kept,
    )


def _is_any(item: UsageItem) -> bool:
    counts = (item.tokens_trained, item.tokens_sampled, item.tokens_scored, item.tokens_cached)
    return any(counts) or item.engine_seconds > 0 or item.bytes_kept > 0


def _day(request: Request, name: str) -> date | None:
    """The day in the query.

    Raises:
        Unprocessable: it is none.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Unprocessable(
            f"{name}={text[:40]!r} is no day.", hint="Write it as YYYY-MM-DD, in UTC."
        ) from None


ROUTES = [Route("/usage", get_usage)]
