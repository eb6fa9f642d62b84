"""Files behind signed links: no key needed, the signature is checked instead."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tinkex.server.errors import NotFound, Unauthenticated
from tinkex.server.services import services
from tinkex.store import checkpoints

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


async def download(request: Request) -> Response:
    """One file of an export."""
    parts = services(request)
    checkpoint_id, name = request.path_params["checkpoint_id"], request.path_params["name"]
    given = request.query_params
    if not parts.signer.allows_download(
        checkpoint_id, name, given.get("expires", ""), given.get("signature", "")
    ):
        raise Unauthenticated(
            "The link is not signed by this server, or it has expired.",
            hint="Ask for new links with get_external_weights_urls.",
            code="bad-link",
        )
    found = await parts.db.aread(checkpoints.get, checkpoint_id)
    if found is None or not _FILE.fullmatch(name):
        raise NotFound("There is no such file.", code="no-such-file")
    path = parts.scheduler.folders.checkpoint(checkpoint_id) / name
    if not path.is_file():
        raise NotFound("There is no such file.", code="no-such-file")
    return FileResponse(path, media_type="application/octet-stream", filename=name)


ROUTES = [Route("/download/{checkpoint_id}/{name}", download)]
