"""Checkpoints merged into their base models, for programs that take no adapters.

The files are made while they are sent, from those of the base model on the server's own disk.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tinkex.merging.errors import NotMergeableError
from tinkex.merging.merged_model import MergedFile, merged_model
from tinkex.server.config import ServerConfig
from tinkex.server.errors import (
    NotFound,
    NotSupported,
    Unauthenticated,
    Unprocessable,
    json_response,
)
from tinkex.server.http.made_in_turn import made_in_turn
from tinkex.server.http.tar_stream import TarFile, tar_response
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.store import checkpoints
from tinkex.store.checkpoints import Checkpoint
from tinkex.types.checkpoint import MergedModelResponse

_ARCHIVE = "archive.tar"


async def merged(request: Request) -> Response:
    """Links to the files of the merged model, and to all of them as one archive."""
    services, values = services_of(request), request.path_params
    path = f"tinker://{values['run_id']}/{values['kind']}/{values['name']}"
    found = await find_checkpoint(services, owner(request), path)
    files = await _merged_files(services, found)
    life_s = services.config.download_life_s
    return json_response(
        MergedModelResponse(
            urls={each.name: _link(request, found, each.name) for each in files},
            archive_url=_link(request, found, _ARCHIVE),
            size_bytes=sum(each.size for each in files),
            expires=datetime.fromtimestamp(int(time.time() + life_s), UTC),
        )
    )


async def download_merged(request: Request) -> Response:
    """One file of a merged model, or all as a tar archive, behind a signed link."""
    services, given = services_of(request), request.query_params
    checkpoint_id, name = request.path_params["checkpoint_id"], request.path_params["name"]
    if not services.signer.allows_download(
        checkpoint_id, _signed(name), given.get("expires", ""), given.get("signature", "")
    ):
        raise Unauthenticated(
            "The link is not signed by this server, or it has expired.",
            hint="Ask for new links.",
            code="bad-link",
        )
    found = await services.db.aread(checkpoints.get, checkpoint_id)
    if found is None:
        raise NotFound("There is no such checkpoint.", code="no-such-checkpoint")
    files = await _merged_files(services, found)
    if name == _ARCHIVE:
        folder = f"{found.name}-merged"
        packed = [TarFile(f"{folder}/{each.name}", each.size, each.chunks) for each in files]
        return made_in_turn(tar_response(packed, f"{folder}.tar"), services.merging)
    for each in files:
        if each.name == name:
            headers = {"content-length": str(each.size)}
            media_type = "application/octet-stream"
            answer = StreamingResponse(each.chunks(), media_type=media_type, headers=headers)
            return made_in_turn(answer, services.merging)
    raise NotFound("There is no such file.", code="no-such-file")


async def _merged_files(services: Services, found: Checkpoint) -> list[MergedFile]:
    """The files to send.

    Raises:
        NotSupported: the base model's files are not here, or are not to be given away.
        Unprocessable: they and the adapter do not make one model.
    """
    path = (await services.models()).find(found.base_model).path
    base = await asyncio.to_thread(_base_folder, services.config, found.base_model, path)
    folders = services.scheduler.folders
    folder = await asyncio.to_thread(folders.fetch, folders.checkpoint(found.checkpoint_id))
    try:
        return await asyncio.to_thread(merged_model, base, folder)
    except NotMergeableError as error:
        raise Unprocessable(str(error), code="not-mergeable") from error


def _base_folder(config: ServerConfig, base_model: str, path: str) -> Path:
    if not config.has_merging:
        raise NotSupported(
            "This server merges no models: its operator keeps the base models' weights.",
            hint="Download the adapter and merge it with PEFT, on a machine that has the base.",
            code="no-merging",
        )
    if not path or not Path(path).is_dir():
        raise NotSupported(
            f"The files of {base_model!r} are not on the server's own disk.",
            hint="Download the adapter and merge it with PEFT, on a machine that has the base.",
            code="no-merging",
        )
    return Path(path)


def _link(request: Request, found: Checkpoint, name: str) -> str:
    services = services_of(request)
    base = (services.config.public_url or str(request.base_url)).rstrip("/")
    expires = services.signer.good_for(services.config.download_life_s)
    signature = services.signer.sign_download(found.checkpoint_id, _signed(name), expires)
    return (
        f"{base}/api/v1/download/merged/{found.checkpoint_id}/{quote(name)}"
        f"?expires={expires}&signature={signature}"
    )


def _signed(name: str) -> str:
    """What is signed: never the name that a file of the checkpoint itself has."""
    return f"merged/{name}"


ROUTES = [
    Route("/training_runs/{run_id}/checkpoints/{kind}/{name}/merged", merged),
    Route("/download/merged/{checkpoint_id}/{name}", download_merged),
]
