"""Counts requests by route and status, and how long they took. Only where metrics are wanted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.telemetry.distribution import Distribution

__all__ = ["RequestMetrics", "RouteLabels"]

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OTHER = "other"


class RouteLabels:
    """The label of a path: the route's own path, up to its first parameter.

    What a client put into a path is in no label, and unknown paths share one.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._exact: set[str] = set()
        self._prefixes: set[str] = set()
        for path in _paths(routes):
            prefix, has_parameter, _ = path.partition("{")
            (self._prefixes if has_parameter else self._exact).add(prefix)

    def of(self, path: str) -> str:
        """The label."""
        if path in self._exact:
            return path
        prefix = path
        while (end := prefix.rstrip("/").rfind("/")) >= 0:
            prefix = prefix[: end + 1]
            if prefix in self._prefixes:
                return f"{prefix}*"
            if end == 0:
                break
        return OTHER


def _paths(routes: Iterable[BaseRoute], before: str = "") -> Iterable[str]:
    for route in routes:
        if isinstance(route, Route):
            yield before + route.path
        elif isinstance(route, Mount):
            yield from _paths(route.routes, before + route.path)


class RequestMetrics:
    """Wraps the whole application and counts each request when it has ended."""

    def __init__(
        self, app: ASGIApp, labels: RouteLabels, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._labels = labels
        self._clock = clock
        self.lock = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()  # by route and status
        self.seconds: dict[str, Distribution] = {}  # by route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, self._clock()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._count(self._labels.of(scope["path"]), status, self._clock() - began)

    def _count(self, route: str, status: int, took_s: float) -> None:
        with self.lock:
            self.counts[route, str(status) if status else "none"] += 1
            if route not in self.seconds:
                self.seconds[route] = Distribution(_BOUNDS)
            self.seconds[route].add(took_s)
