"""The page: static files, sent without a key, under the names of this server only.

It holds no data. What it shows it gets by the other routes, with the key that was typed into it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import NotFound, WrongHost
from tinkex.server.gate.auth import PAGE_PREFIX
from tinkex.server.http.headers import header
from tinkex.server.http.hosts import AllowedHosts
from tinkex.server.services import services_of
from tinkex.web import files

_SHOWN_CHARS = 100
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",  # cached, and revalidated by its entity tag
    "vary": "accept-encoding",
}


async def index(request: Request) -> Response:
    """The server's page, for a browser."""
    return _send(request, files.INDEX)


async def file(request: Request) -> Response:
    """A file of the page: a module, a style sheet, a picture."""
    return _send(request, request.path_params["name"])


def _send(request: Request, name: str) -> Response:
    host = header(request.scope, b"host")
    if not AllowedHosts(services_of(request).config).allows(host):
        raise WrongHost(f"The page is not served under the host name {host[:_SHOWN_CHARS]!r}.")
    found = files.read(name)
    if found is None:
        raise NotFound("There is no such file of the page.", code="no-such-file")
    headers = {**_HEADERS, "etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.gzipped, headers=headers, media_type=found.media_type)
    return Response(found.plain, headers=headers, media_type=found.media_type)


ROUTES = [Route("/", index), Route(f"{PAGE_PREFIX}{{name}}", file)]
"""Outside the prefix of the protocol's routes."""
