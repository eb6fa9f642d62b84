"""Sessions: opened, kept alive, listed, finished."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex import crashpoints
from tinkex.server.errors import NotFound, NotSupported, json_response
from tinkex.server.gate.auth import user_urn
from tinkex.server.gate.limits import check_search, check_session, check_text
from tinkex.server.http.paging import page_of
from tinkex.server.services import owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.store import checkpoints, quotas, sessions
from tinkex.store.clock import steady_now
from tinkex.store.sessions import Session
from tinkex.types.requests import (
    AssignProjectRequest,
    CreateSessionRequest,
    FinishSessionRequest,
    SessionHeartbeatRequest,
)
from tinkex.types.search import (
    ClientFinishedSessionStatusQuery,
    SessionSearchRequest,
    SessionStatusQuery,
    UserSearchOwner,
)
from tinkex.types.session import (
    CreateSessionResponse,
    GetSessionResponse,
    ListSessionsResponse,
    SessionHeartbeatResponse,
)


async def create(request: Request) -> Response:
    """A new session."""
    services = services_of(request)
    payload = await read_json(request, CreateSessionRequest, services.config.limits)
    check_session(payload, services.config.limits)
    most = services.config.limits.max_sessions_per_owner
    session_id = await services.db.awrite(_create, owner(request), payload, most)
    return json_response(CreateSessionResponse(session_id=session_id))


async def heartbeat(request: Request) -> Response:
    """The session is alive; 410 once it was finished."""
    services = services_of(request)
    payload = await read_json(request, SessionHeartbeatRequest, services.config.limits)
    await services.session(owner(request), payload.session_id)
    services.heartbeats[payload.session_id] = steady_now()
    return json_response(SessionHeartbeatResponse())


async def finish(request: Request) -> Response:
    """Ends the session and frees its ephemeral samplers; the first reason wins."""
    services = services_of(request)
    session_id = request.path_params["session_id"]
    await services.session(owner(request), session_id, must_be_open=False)
    payload = await read_json(request, FinishSessionRequest, services.config.limits)
    # A reason that is too long is cut: the session must end all the same.
    detail = payload.detail and payload.detail[: services.config.limits.max_text_chars]
    ended = await services.db.awrite_freeing(
        sessions.finish, owner(request), session_id, payload.reason.type, detail
    )
    services.forget_session(session_id)
    crashpoints.passing("session.ended")
    if ended:
        await asyncio.to_thread(services.scheduler.free_session, session_id)
    return json_response({})


async def list_all(request: Request) -> Response:
    """The caller's session ids, newest first."""
    limit, offset = page_of(request, default=20)
    found = await services_of(request).db.aread(
        sessions.list_ids, owner(request), limit=limit, offset=offset
    )
    return json_response(ListSessionsResponse(sessions=found))


async def get(request: Request) -> Response:
    """What belongs to a session."""
    services = services_of(request)
    session_id = request.path_params["session_id"]
    session = await services.session(owner(request), session_id, must_be_open=False)
    runs, samplers = await services.db.aread(sessions.members, owner(request), session_id)
    return json_response(
        GetSessionResponse(
            training_run_ids=runs,
            sampler_ids=samplers,
            user_metadata=session.user_metadata,
            display_name=session.display_name,
        )
    )


async def set_project(request: Request) -> Response:
    """Moves the session to a project."""
    services = services_of(request)
    session_id = request.path_params["session_id"]
    payload = await read_json(request, AssignProjectRequest, services.config.limits)
    check_text("project_id", payload.project_id, services.config.limits.max_text_chars)
    if not await services.db.awrite(
        sessions.set_project, owner(request), session_id, payload.project_id
    ):
        raise NotFound(f"There is no session {session_id[:100]!r}.", code="unknown-session")
    services.forget_session(session_id)
    return json_response({})


async def trace_export(request: Request) -> Response:
    """This server records no traces."""
    session_id = request.path_params["session_id"]
    await services_of(request).session(owner(request), session_id, must_be_open=False)
    raise NotSupported("This server records no session traces.", code="no-traces")


async def search(request: Request) -> Response:
    """The caller's sessions that fit a description, newest first."""
    services = services_of(request)
    payload = await read_json(request, SessionSearchRequest, services.config.limits)
    check_search(payload, services.config.limits)
    me = owner(request)
    if isinstance(payload.owner, UserSearchOwner) and user_urn(me) not in payload.owner.owner_urns:
        return json_response({"sessions": [], "next_cursor": None})
    found = await services.db.aread(_search, me, payload)
    page = found[: payload.limit]
    totals = await services.db.aread(
        checkpoints.totals_of_sessions, me, [each.session_id for each in page]
    )
    more = None
    if len(found) > payload.limit:
        more = {
            "last_created_at": _iso(page[-1].created_at),
            "last_session_id": page[-1].session_id,
        }
    shown = [_summary(each, *totals.get(each.session_id, (0, 0))) for each in page]
    return json_response({"sessions": shown, "next_cursor": more})


def _create(conn: Connection, me: str, payload: CreateSessionRequest, most: int) -> str:
    quotas.check_sessions(conn, me, most)
    return sessions.create(
        conn,
        me,
        tags=payload.tags,
        user_metadata=payload.user_metadata or {},
        sdk_version=payload.sdk_version,
        project_id=payload.project_id,
        display_name=payload.display_name,
    )


def _search(conn: Connection, me: str, payload: SessionSearchRequest) -> list[Session]:
    """One session more than requested, if there are so many."""
    cursor = payload.cursor
    before = None
    if cursor is not None:
        before = (cursor.last_created_at.timestamp(), cursor.last_session_id)
    found: list[Session] = []
    while len(found) <= payload.limit:
        page = sessions.search(
            conn,
            me,
            limit=payload.limit + 1,
            session_id=payload.session_id,
            project_ids=payload.project_ids,
            display_name=payload.display_name,
            before=before,
        )
        if not page:
            break
        found += [each for each in page if _fits(each, payload)]
        before = (page[-1].created_at, page[-1].session_id)
    return found[: payload.limit + 1]


def _fits(session: Session, payload: SessionSearchRequest) -> bool:
    has_metadata = all(
        str(session.user_metadata.get(key)) == value for key, value in payload.user_metadata.items()
    )
    return has_metadata and (
        payload.statuses is None or any(_has_status(session, query) for query in payload.statuses)
    )


def _has_status(session: Session, query: SessionStatusQuery) -> bool:
    if isinstance(query, ClientFinishedSessionStatusQuery):
        is_wanted = query.reasons is None or session.finish_reason in query.reasons
        return session.finished_at is not None and is_wanted
    return query.type == "active" and session.finished_at is None


def _summary(session: Session, num_checkpoints: int, size_bytes: int) -> dict[str, object]:
    status: dict[str, object] = {"type": "active"}
    if session.finished_at is not None:
        status = {
            "type": "client_finished",
            "reason": {"type": session.finish_reason},
            "detail": session.finish_detail,
        }
    return {
        "session_id": session.session_id,
        "created_at": _iso(session.created_at),
        "owner": user_urn(session.owner),
        "project_id": session.project_id or "",
        "status": status,
        "checkpoints_count": num_checkpoints,
        "checkpoint_storage_bytes": size_bytes,
        "display_name": session.display_name,
        "user_metadata": {key: str(value) for key, value in session.user_metadata.items()},
    }


def _iso(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


ROUTES = [
    Route("/create_session", create, methods=["POST"]),
    Route("/session_heartbeat", heartbeat, methods=["POST"]),
    Route("/sessions", list_all),
    Route("/sessions/search", search, methods=["POST"]),
    Route("/sessions/{session_id}", get),
    Route("/sessions/{session_id}/finish", finish, methods=["POST"]),
    Route("/sessions/{session_id}/project", set_project, methods=["PUT"]),
    Route("/sessions/{session_id}/trace_export", trace_export),
]
