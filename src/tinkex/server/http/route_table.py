"""Routes without parameters, found by their path at once instead of one pattern after the other."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

__all__ = ["RouteTable"]


class RouteTable(BaseRoute):
    """Dispatches requests with an exact path; all others go to the routes as they are.

    Errors are left to the application, which handles those of every route.
    """

    def __init__(self, prefix: str, routes: Sequence[Route]) -> None:
        self._routes = {
            (method, prefix + route.path): route
            for route in routes
            if not route.param_convertors
            for method in route.methods or ()
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        route = self._routes.get((scope.get("method", ""), scope["path"]))
        if route is None:
            return Match.NONE, {}
        return Match.FULL, {"route": route, "endpoint": route.endpoint, "path_params": {}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await scope["endpoint"](Request(scope, receive, send))
        await response(scope, receive, send)
