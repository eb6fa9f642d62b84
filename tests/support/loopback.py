"""The scripted loopback server: the Tinker protocol on 127.0.0.1, with faults on demand.

    with LoopbackServer() as server:
        server.on("asample").reply(status=429, headers={"retry-after-ms": "50"})
        service = ServiceClient(base_url=server.url, api_key="tml-a")
        ...
        assert server.count("asample") == 1

Every request is recorded, also those that a fault kept from the service.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from tests.support.faults import Rule, Script
from tests.support.http_server import Fault, HttpServer, Request, Response
from tests.support.protocol import TinkerService, decode, route_of
from tests.support.state import Applied, Model

FINAL_REFUSALS = frozenset({401, 403, 404, 422})
"""Statuses after which a training request's number is never sent again."""


def _is_final(answer: Response) -> bool:
    """Whether a client will not send this request again."""
    if answer.headers.get("x-should-retry") == "true":
        return False
    return answer.status in FINAL_REFUSALS or (answer.status == 400 and bool(answer.body))


class LoopbackServer:
    """A service, a script of faults, and a record of everything that was asked."""

    def __init__(self, **options: Any) -> None:
        self.service = TinkerService(**options)
        self.requests: list[Request] = []
        self._script = Script()
        self._http = HttpServer(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Listen on a free port."""
        self._http.start()
        self.service.base_url = self.url
        return self

    def stop(self) -> None:
        """End the server and all its connections."""
        self._http.stop()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self._http.port}"

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return self._http.open_connections

    @property
    def connections_opened(self) -> int:
        """How many connections there have been."""
        return self._http.connections_opened

    # Scripting.

    def on(self, route: str) -> Rule:
        """A new rule for the requests of this route."""
        return self._script.on(route)

    def hold(self, kind: str) -> None:
        """Keep work of this kind (`asample`, `optim_step`, ...) from being done."""
        self._on_loop(self.service.world.hold, kind)

    def release(self, kind: str) -> None:
        """Let held work be done."""
        self._on_loop(self.service.world.release, kind)

    # What happened.

    def calls(self, route: str) -> list[Request]:
        """The requests of one route, in the order of their arrival."""
        return [request for request in tuple(self.requests) if request.route == route]

    def count(self, route: str) -> int:
        """How many requests of one route arrived."""
        return len(self.calls(route))

    def counts(self) -> dict[str, int]:
        """How many requests of each route arrived."""
        found: dict[str, int] = {}
        for request in tuple(self.requests):
            found[request.route] = found.get(request.route, 0) + 1
        return found

    def model(self, model_id: str | None = None) -> Model:
        """A training run; the only one, if none is named."""
        models = self.service.world.models
        if model_id is None:
            (model_id,) = models
        return models[model_id]

    def history(self, model_id: str | None = None) -> list[Applied]:
        """What was applied to a training run, in order."""
        return list(self.model(model_id).history)

    def applied(self, model_id: str | None = None) -> list[tuple[int, str]]:
        """The numbers and kinds of what was applied to a training run."""
        return [(entry.seq_id, entry.kind) for entry in self.history(model_id)]

    def wait_for(self, route: str, count: int = 1, timeout_s: float = 10) -> None:
        """Return once so many requests of the route have arrived."""
        self.wait_until(lambda: self.count(route) >= count, timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Return once the condition holds; a test fails if it never does."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it never held; requests so far: {self.counts()}")
            time.sleep(0.001)

    # The application behind the HTTP server.

    def on_head(self, request: Request) -> Fault | None:
        """The fault that strikes before the body is read."""
        request.route, _ = route_of(request)
        self.requests.append(request)
        return self._script.at_head(request.route)

    def on_request(self, request: Request) -> Fault:
        """The fault that strikes the whole request."""
        request.decoded = decode(request)
        fault = self._script.at_request(request.route, request.decoded)
        if fault.answer is not None and not fault.is_applied and _is_final(fault.answer):
            self.service.refuse(request.decoded)
        return fault

    async def respond(self, request: Request) -> Response:
        """The service's own answer."""
        return await self.service.answer(request, request.decoded)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        async def run() -> None:
            function(*arguments)

        self._http.call(run())
