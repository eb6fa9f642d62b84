"""Training runs and their checkpoints: listing, publishing, expiry, deletion, download links."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from urllib.parse import quote

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex import crashpoints
from tinkex.files.atomic_folder import payload_files
from tinkex.server.errors import NotFound, Unprocessable, json_response
from tinkex.server.gate.limits import check_ttl
from tinkex.server.http.paging import page_of
from tinkex.server.routes.run_summaries import run_page, show_checkpoint, show_runs, some_runs
from tinkex.server.services import owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.store import checkpoints, deletions, models
from tinkex.types.checkpoint import (
    CheckpointsListResponse,
    Cursor,
    ExternalWeightsUrlsResponse,
)
from tinkex.types.requests import SetTTLRequest

_OFFICIAL_CLIENT = re.compile(r"Tinker/Python 0\.(\d{1,4})\.")


async def list_runs(request: Request) -> Response:
    """The caller's runs, last used first; with `spark=1` each with a few of its losses."""
    limit, offset = page_of(request, default=20)
    with_spark = request.query_params.get("spark") == "1"
    services = services_of(request)
    runs, total = await services.db.aread(
        run_page, owner(request), limit, offset, request.query_params.get("project_id")
    )
    cursor = Cursor(offset=offset, limit=limit, total_count=total)
    shown = show_runs(services, runs, with_spark=with_spark)
    return json_response({"training_runs": shown, "cursor": cursor})


async def get_run(request: Request) -> Response:
    """One run."""
    services, run_id = services_of(request), request.path_params["run_id"]
    found = await services.db.aread(some_runs, owner(request), [run_id])
    if not found:
        raise _no_run(request)
    return json_response(show_runs(services, found)[0])


async def list_of_run(request: Request) -> Response:
    """All checkpoints of a run."""
    db, me, run_id = services_of(request).db, owner(request), request.path_params["run_id"]
    if await db.aread(models.get, me, run_id) is None:
        raise _no_run(request)
    found = await db.aread(checkpoints.list_of_run, me, run_id, without=_unreadable_kinds(request))
    return json_response(
        CheckpointsListResponse(checkpoints=[show_checkpoint(each) for each in found])
    )


async def list_of_owner(request: Request) -> Response:
    """The caller's checkpoints, newest first."""
    limit, offset = page_of(request, default=100)
    found, total = await services_of(request).db.aread(
        checkpoints.list_of_owner,
        owner(request),
        limit=limit,
        offset=offset,
        without=_unreadable_kinds(request),
    )
    cursor = Cursor(offset=offset, limit=limit, total_count=total)
    return json_response(
        CheckpointsListResponse(
            checkpoints=[show_checkpoint(each) for each in found], cursor=cursor
        )
    )


async def delete(request: Request) -> Response:
    """Deletes a checkpoint, row first, then its files."""
    services = services_of(request)
    try:
        found = await _find(request)
    except NotFound:
        if await _was_answered_in_vain(request):
            return json_response({})
        raise
    await services.db.awrite_freeing(_delete, owner(request), found)
    crashpoints.passing("checkpoint.deleted")
    folders = services.scheduler.folders
    await asyncio.to_thread(folders.remove, folders.checkpoint(found.checkpoint_id))
    return json_response({})


async def publish(request: Request) -> Response:
    """Lets every key read the checkpoint."""
    return await _set_public(request, is_public=True)


async def unpublish(request: Request) -> Response:
    """Takes the publication back."""
    return await _set_public(request, is_public=False)


async def set_ttl(request: Request) -> Response:
    """Sets when the checkpoint goes away; null keeps it."""
    services = services_of(request)
    payload = await read_json(request, SetTTLRequest, services.config.limits)
    found = await _find(request)
    ttl_s = payload.ttl_seconds
    check_ttl(ttl_s, services.config.limits)
    expires_at = None if ttl_s is None else time.time() + ttl_s
    await services.db.awrite(
        checkpoints.set_expiry, owner(request), found.checkpoint_id, expires_at
    )
    return json_response({})


async def external_weights_urls(request: Request) -> Response:
    """Links to an export's files that need no key and work for a while."""
    services = services_of(request)
    found = await _find(request)
    if found.kind != "external_weights":
        raise Unprocessable(
            f"{found.tinker_path} is not an export.",
            hint="Make one with save_weights_external.",
            code="wrong-kind",
        )
    folders, life_s = services.scheduler.folders, services.config.download_life_s
    folder = folders.checkpoint(found.checkpoint_id)
    urls = await asyncio.to_thread(folders.signed_urls, folder, life_s)
    if urls is None:
        names = await asyncio.to_thread(lambda: [path.name for path in payload_files(folder)])
        urls = {name: _download_url(request, found.checkpoint_id, name) for name in names}
    return json_response(
        ExternalWeightsUrlsResponse(
            urls=urls, expires=datetime.fromtimestamp(int(time.time() + life_s), UTC)
        )
    )


def _download_url(request: Request, checkpoint_id: str, name: str) -> str:
    """Where this server gives the file to every holder of the link."""
    services = services_of(request)
    base = (services.config.public_url or str(request.base_url)).rstrip("/")
    expires = services.signer.good_for(services.config.download_life_s)
    signature = services.signer.sign_download(checkpoint_id, name, expires)
    return (
        f"{base}/api/v1/download/{checkpoint_id}/{quote(name)}"
        f"?expires={expires}&signature={signature}"
    )


async def _was_answered_in_vain(request: Request) -> bool:
    """Whether the client repeats a deletion whose answer was lost."""
    if request.headers.get("x-stainless-retry-count", "0") == "0":
        return False
    db = services_of(request).db
    return await db.aread(deletions.was_deleted, owner(request), _path(request))


def _delete(conn: Connection, me: str, found: checkpoints.Checkpoint) -> None:
    if checkpoints.delete_one(conn, me, found.checkpoint_id):
        deletions.note(conn, found)


async def _set_public(request: Request, *, is_public: bool) -> Response:
    found = await _find(request)
    await services_of(request).db.awrite(
        checkpoints.set_public, owner(request), found.checkpoint_id, is_public
    )
    return json_response({})


async def _find(request: Request) -> checkpoints.Checkpoint:
    return await find_checkpoint(services_of(request), owner(request), _path(request))


def _path(request: Request) -> str:
    values = request.path_params
    return f"tinker://{values['run_id']}/{values['kind']}/{values['name']}"


def _unreadable_kinds(request: Request) -> frozenset[str]:
    """Kinds of checkpoints left out of lists: clients before 0.28 fail at a kind they lack."""
    version = _OFFICIAL_CLIENT.search(request.headers.get("user-agent", ""))
    is_old = version is not None and int(version[1]) < 28
    return frozenset({"external_weights"}) if is_old else frozenset()


def _no_run(request: Request) -> NotFound:
    run_id = request.path_params["run_id"]
    return NotFound(f"There is no training run {run_id[:200]!r}.", code="unknown-run")


_ONE = "/training_runs/{run_id}/checkpoints/{kind}/{name}"

ROUTES = [
    Route("/training_runs", list_runs),
    Route("/training_runs/{run_id}", get_run),
    Route("/training_runs/{run_id}/checkpoints", list_of_run),
    Route("/checkpoints", list_of_owner),
    Route(_ONE, delete, methods=["DELETE"]),
    Route(f"{_ONE}/publish", publish, methods=["POST"]),
    Route(f"{_ONE}/publish", unpublish, methods=["DELETE"]),
    Route(f"{_ONE}/ttl", set_ttl, methods=["PUT"]),
    Route(f"{_ONE}/external_weights_urls", external_weights_urls),
]
