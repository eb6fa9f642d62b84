"""Shapes that clients before 0.25 speak and newer ones have dropped."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import partial
from pathlib import Path

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex import crashpoints
from tinkex.files.atomic_folder import payload_files
from tinkex.server.errors import NotFound, Unauthenticated, json_response
from tinkex.server.http.tar_stream import TarFile, chunks_of, tar_response
from tinkex.server.services import owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.server.submit.model_submission import require_model
from tinkex.store import checkpoints, models, operation_outcomes, operations
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import NewOperation
from tinkex.store.results import Result
from tinkex.types.requests import UnloadModelRequest
from tinkex.types.session import UnloadModelResponse, UntypedPromise
from tinkex.wire import json

_ARCHIVE = "archive.tar"


async def unload_model(request: Request) -> Response:
    """A promise, fulfilled at once, that the model is unloaded."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, UnloadModelRequest, services.config.limits)
    await require_model(services, me, payload.model_id)
    request_id = await services.db.awrite(_unload, me, payload.model_id)
    crashpoints.passing("unload.kept")
    return json_response(UntypedPromise(request_id=request_id, model_id=payload.model_id))


async def archive(request: Request) -> Response:
    """Sends the client on to a signed link to the checkpoint as a tar file."""
    services = services_of(request)
    values = request.path_params
    path = f"tinker://{values['run_id']}/{values['kind']}/{values['name']}"
    found = await find_checkpoint(services, owner(request), path)
    life_s = services.config.download_life_s
    expires = services.signer.good_for(life_s)
    signature = services.signer.sign_download(found.checkpoint_id, _ARCHIVE, expires)
    base = (services.config.public_url or str(request.base_url)).rstrip("/")
    link = (
        f"{base}/api/v1/download/archive/{found.checkpoint_id}"
        f"?expires={expires}&signature={signature}"
    )
    if request.query_params.get("redirect") == "false":  # a browser may not read a Location
        return json_response({"url": link})
    headers = {"location": link, "expires": formatdate(time.time() + life_s, usegmt=True)}
    return Response(status_code=302, headers=headers)


async def download_archive(request: Request) -> Response:
    """The checkpoint as a tar file, behind a signed link."""
    services = services_of(request)
    checkpoint_id, given = request.path_params["checkpoint_id"], request.query_params
    if not services.signer.allows_download(
        checkpoint_id, _ARCHIVE, given.get("expires", ""), given.get("signature", "")
    ):
        raise Unauthenticated("The link is not ours, or it has expired.", code="bad-link")
    if await services.db.aread(checkpoints.get, checkpoint_id) is None:
        raise NotFound("There is no such checkpoint.", code="no-such-checkpoint")
    folders = services.scheduler.folders
    folder = await asyncio.to_thread(folders.fetch, folders.checkpoint(checkpoint_id))
    return tar_response(await asyncio.to_thread(_files, folder))


def _unload(conn: Connection, me: str, model_id: str) -> str:
    """Outside the order of the model: the request has no number. Must run as a write."""
    models.set_state(conn, model_id, "unloaded")
    new = NewOperation(
        owner=me,
        model_id=model_id,
        seq_id=-operations.free_seq(conn, model_id),
        kind="unload_model",
        body=b"",
        digest=b"",
        cost=0,
    )
    operation = operations.append(conn, new).operation
    answer = json.encode(UnloadModelResponse(model_id=model_id))
    operation_outcomes.finish(
        conn, [OperationOutcome(operation=operation, result=Result(encoding="json", body=answer))]
    )
    return operation.request_id


def _files(folder: Path) -> list[TarFile]:
    """The plain files of a checkpoint."""
    if not folder.is_dir():
        raise NotFound("There is no such checkpoint.", code="no-such-checkpoint")
    plain = (path for path in payload_files(folder) if not path.is_symlink())
    return [TarFile(path.name, path.stat().st_size, partial(chunks_of, path)) for path in plain]


ROUTES = [
    Route("/unload_model", unload_model, methods=["POST"]),
    Route("/training_runs/{run_id}/checkpoints/{kind}/{name}/archive", archive),
    Route("/download/archive/{checkpoint_id}", download_archive),
]
