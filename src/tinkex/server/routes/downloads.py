"""Files behind signed links: no key needed, the signature is checked instead."""

from __future__ import annotations

import asyncio
import re

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tinkex.server.errors import (
    BadRange,
    NotFound,
    RangeNotSatisfiable,
    Unauthenticated,
    error_response,
)
from tinkex.server.http.headers import header
from tinkex.server.services import services_of
from tinkex.store import checkpoints

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


async def download(request: Request) -> Response:
    """One file of an export."""
    services = services_of(request)
    checkpoint_id, name = request.path_params["checkpoint_id"], request.path_params["name"]
    given = request.query_params
    if not services.signer.allows_download(
        checkpoint_id, name, given.get("expires", ""), given.get("signature", "")
    ):
        raise Unauthenticated(
            "The link is not signed by this server, or it has expired.",
            hint="Request new links with get_external_weights_urls.",
            code="bad-link",
        )
    found = await services.db.aread(checkpoints.get, checkpoint_id)
    if found is None or not _FILE.fullmatch(name):
        raise NotFound("There is no such file.", code="no-such-file")
    folders = services.scheduler.folders
    folder = await asyncio.to_thread(folders.fetch, folders.checkpoint(checkpoint_id))
    path = folder / name
    if not path.is_file():
        raise NotFound("There is no such file.", code="no-such-file")
    return _File(path, media_type="application/octet-stream", filename=name)


class _File(FileResponse):
    """A file, or a part of it, whose errors of range are answered like all others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Response | None = None

        async def send_typed(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in {400, 416}:
                refused = _refusal(message, header(scope, b"range"))
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, send_typed)
        if refused is not None:
            await refused(scope, receive, send)


def _refusal(start: Message, given: str) -> Response:
    if start["status"] == 400:
        return error_response(BadRange(f"The Range header {given!r} is not understood."))
    answer = error_response(RangeNotSatisfiable(f"The file has no bytes in the range {given!r}."))
    answer.headers["content-range"] = Headers(raw=start["headers"])["content-range"]
    return answer


ROUTES = [Route("/download/{checkpoint_id}/{name}", download)]
