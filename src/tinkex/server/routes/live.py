"""What happens to runs as server-sent events, so that a page need not poll."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tinkex.server.errors import LimitExceeded, NotFound, Unauthenticated, Unprocessable
from tinkex.server.gate.auth import credential_of
from tinkex.server.live_feed import LiveStream
from tinkex.server.routes.run_metrics import as_columns, read_points
from tinkex.server.routes.run_summaries import show_runs, some_runs
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.run_status import SETTLED_AFTER_S
from tinkex.store import StoreError, models, run_points
from tinkex.wire import json

__all__ = ["ROUTES"]

_EVENT_STREAM = "text/event-stream"
_RETRY_MS = 2000
_KEEP_ALIVE_S = 15.0
_LEAST_PAUSE_S = 0.2
_LOOK_EVERY_S = 1.0
_MAX_RUNS = 64
_CURSOR = re.compile(r"(.{1,128})=(\d{1,12})", re.DOTALL)


async def live(request: Request) -> Response:
    """Changed runs, new points and operations of the runs named in `runs`, as they come."""
    services, me = services_of(request), owner(request)
    named = [each for each in request.query_params.get("runs", "").split(",") if each]
    if len(named) > _MAX_RUNS:
        raise LimitExceeded(
            f"runs names {len(named)} runs, above this server's limit of {_MAX_RUNS}."
        )
    cursors = await services.db.aread(_last_points, me, named)
    if missing := [each for each in named if each not in cursors]:
        raise NotFound(f"There is no training run {missing[0][:200]!r}.", code="unknown-run")
    received = _cursors(
        request.headers.get("last-event-id") or request.query_params.get("after", "")
    )
    cursors |= {run_id: received[run_id] for run_id in named if run_id in received}
    events = _Events(services, me, credential_of(request.scope), cursors)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type=_EVENT_STREAM, headers=headers)
    return StreamingResponse(events.stream(), media_type=_EVENT_STREAM, headers=headers)


class _Events:
    """The events of one stream."""

    def __init__(
        self, services: Services, me: str, credential: str, cursors: dict[str, int]
    ) -> None:
        self._services = services
        self._me = me
        self._credential = credential
        self._cursors = cursors
        self._settles_at: dict[str, float] = {}  # when a run that ran is to be looked at again

    async def stream(self) -> AsyncIterator[bytes]:
        """The events, until the server stops or the key is revoked."""
        services = self._services
        with services.live.open(self._me, frozenset(self._cursors)) as stream:
            yield f"retry: {_RETRY_MS}\n\n".encode()
            for run_id in self._cursors:  # what came since the reader's cursor
                stream.note_run(run_id)
            sent_at = time.monotonic()
            ends_at = sent_at + services.config.live_stream_s
            while time.monotonic() < ends_at and await self._may_go_on():
                await _wait(stream)
                self._note_settled(stream)
                text = b"".join([part async for part in self._news(stream)])
                if text or time.monotonic() - sent_at >= _KEEP_ALIVE_S:
                    yield text or b": \n\n"
                    sent_at = time.monotonic()
                    await asyncio.sleep(_LEAST_PAUSE_S)

    async def _may_go_on(self) -> bool:
        """Whether the server runs on and the key is still valid; checked before each read."""
        if self._services.live.is_closed:
            return False
        try:
            await self._services.keyring.authenticate(self._credential)
        except (Unauthenticated, StoreError):
            return False
        return True

    async def _news(self, stream: LiveStream) -> AsyncIterator[bytes]:
        changed, operations, is_lost = stream.take()
        if is_lost:
            yield self._event("reset", {})
        for each in operations:
            yield self._event("operation", each)
        for run_id in changed & self._cursors.keys():
            async for points in self._points(run_id):
                yield points
        if changed:
            now = time.monotonic()
            self._settles_at |= dict.fromkeys(changed, now + SETTLED_AFTER_S + _LOOK_EVERY_S)
            found = await self._services.db.aread(some_runs, self._me, sorted(changed))
            for run in show_runs(self._services, found, with_spark=True):
                yield self._event("run", run)

    async def _points(self, run_id: str) -> AsyncIterator[bytes]:
        has_more = True
        while has_more:
            found = await self._services.db.aread(
                read_points,
                self._me,
                run_id,
                after=self._cursors[run_id],
                max_points=0,
                with_chain=True,
            )
            if found is None or not found[0]:
                return
            points, has_more, _, cursor = found
            self._cursors[run_id] = cursor
            columns = as_columns(points, None)
            yield self._event("point", {"run": run_id, "columns": columns, "cursor": cursor})

    def _note_settled(self, stream: LiveStream) -> None:
        """Looks once more at runs that ran a while ago: they are idle now, or wait."""
        now = time.monotonic()
        for run_id in [each for each, at in self._settles_at.items() if at <= now]:
            del self._settles_at[run_id]
            if run_id not in stream.changed:
                stream.note_run(run_id)

    def _event(self, name: str, value: Any) -> bytes:
        """The event; its id says how far the reader has the watched runs' points."""
        position = ",".join(f"{run_id}={cursor}" for run_id, cursor in self._cursors.items())
        return f"event: {name}\nid: {position}\ndata: ".encode() + json.encode(value) + b"\n\n"


async def _wait(stream: LiveStream) -> None:
    """Returns when there is news, or after a while."""
    try:
        async with asyncio.timeout(_LOOK_EVERY_S):
            await stream.has_news.wait()
    except TimeoutError:
        pass


def _last_points(conn: Connection, me: str, run_ids: list[str]) -> dict[str, int]:
    """The number of the last point of those of these runs that the owner has."""
    return {
        run_id: run_points.last_number(conn, run_id)
        for run_id in run_ids
        if models.get(conn, me, run_id) is not None
    }


def _cursors(position: str) -> dict[str, int]:
    """The cursors in the id of an event.

    Raises:
        Unprocessable: it is no id of ours.
    """
    found = {}
    for part in position.split(",") if position else ():
        match = _CURSOR.fullmatch(part)
        if match is None:
            raise Unprocessable(
                f"{part[:100]!r} is no position of a live stream.",
                hint="Send the id of the last event, or RUN=CURSOR for each run.",
            )
        found[match[1]] = int(match[2])
    return found


ROUTES = [Route("/live", live)]
