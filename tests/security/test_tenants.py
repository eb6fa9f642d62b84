"""Two tenants over every route: what is not yours does not exist, and nothing of it reaches you.

The routes come from the application's table; one without an entry in `surface.REQUESTS` fails
`test_every_route_has_a_request`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.security.conftest import NewKey
from tests.security.surface import REQUESTS, Call, RouteKey
from tests.security.things import Things
from tests.server.driving import Http, null_config
from tinkex.engine.null import NullEngine
from tinkex.server.app import build_app
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.overload import Overload
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.listen.uvicorn_server import HttpServer
from tinkex.server.process import ServerProcess
from tinkex.store import Database, keys

NAMING = sorted(key for key, entry in REQUESTS.items() if entry.names)
OTHERS = sorted(key for key, entry in REQUESTS.items() if not entry.names)
MARK = "marked-7c1e"
LINKS = {
    ("GET", "/download/archive/{checkpoint_id}"),
    ("GET", "/download/merged/{checkpoint_id}/{name}"),
    ("GET", "/download/{checkpoint_id}/{name}"),
}


@pytest.fixture(scope="module")
def alice(server: EmbeddedServer, new_key: NewKey) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, new_key())


@pytest.fixture(scope="module")
def bob(server: EmbeddedServer, new_key: NewKey) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, new_key())


@pytest.fixture(scope="module")
def hers(alice: Http) -> Things:
    """Alice's things, every text of hers marked."""
    things = Things.make(alice)
    request = {
        "tags": [MARK],
        "user_metadata": {MARK: MARK},
        "sdk_version": "1",
        "project_id": MARK,
        "display_name": f"{MARK} run one",
    }
    alice.post("create_session", request)
    alice.call("PUT", f"sessions/{things.session}/project", {"project_id": MARK})
    return things


def send(http: Http, call: Call) -> httpx.Response:
    return http.client.request(
        call.method,
        call.target,
        content=call.body,
        headers={"X-API-Key": http.api_key, "Content-Type": call.content_type, **call.headers},
    )


def without_ids(answer: httpx.Response, things: Things) -> Any:
    """The answer without the ids in the request."""
    text = answer.text
    for name in things.ids():
        text = text.replace(name, "<id>")
    headers = {k: v for k, v in answer.headers.items() if k not in {"date", "content-length"}}
    return answer.status_code, headers, json.loads(text)


@pytest.mark.parametrize("route", NAMING, ids=" ".join)
def test_another_owners_id_is_like_an_unknown_id(
    route: RouteKey, bob: Http, hers: Things, alice: Http
) -> None:
    nobodys, make = Things.of_nobody(), REQUESTS[route].make
    answer = send(bob, make(hers))
    assert answer.status_code == 404, answer.text
    assert without_ids(answer, hers) == without_ids(send(bob, make(nobodys)), nobodys)
    assert MARK not in answer.text


CHANGING = {  # the target of these calls no longer exists, or is no longer hers alone
    ("POST", "/sessions/{session_id}/finish"),
    ("DELETE", "/training_runs/{run_id}/checkpoints/{kind}/{name}"),
    ("POST", "/training_runs/{run_id}/checkpoints/{kind}/{name}/publish"),
}


@pytest.mark.parametrize("route", NAMING, ids=" ".join)
def test_to_her_it_exists(route: RouteKey, alice: Http, hers: Things) -> None:
    things = Things.make(alice) if route in CHANGING else hers
    answer = send(alice, REQUESTS[route].make(things))
    not_here = {
        ("GET", "/sessions/{session_id}/trace_export"): 404,
        # The null engine's models have no files to merge, which is found after the checkpoint.
        ("GET", "/training_runs/{run_id}/checkpoints/{kind}/{name}/merged"): 404,
        # They have no tokenizer either, which is found after the checkpoint.
        ("POST", "/v1/completions"): 400,
        ("POST", "/v1/chat/completions"): 400,
    }
    assert answer.status_code in {not_here.get(route, 200), 302, 408}, answer.text


@pytest.mark.parametrize("route", [each for each in OTHERS if each not in LINKS], ids=" ".join)
def test_nothing_of_hers_is_in_any_other_answer(
    route: RouteKey, server: EmbeddedServer, new_key: NewKey, hers: Things, alice: Http
) -> None:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        answer = send(Http(client, new_key()), REQUESTS[route].make(hers))
    echoed = {hers.session} if MARK not in answer.text else set()
    found = [name for name in hers.ids() if name in answer.text and name not in echoed]
    assert not found
    assert MARK not in answer.text
    assert alice.api_key not in answer.text


@pytest.mark.parametrize("route", sorted(LINKS), ids=" ".join)
def test_a_link_with_another_signature_reveals_nothing(
    route: RouteKey, bob: Http, hers: Things
) -> None:
    def forged(things: Things) -> httpx.Response:
        call = REQUESTS[route].make(things)
        return send(bob, call._replace(query={**call.query, "signature": "0" * 64}))

    nobodys = Things.of_nobody()
    assert forged(hers).status_code == 401
    assert without_ids(forged(hers), hers) == without_ids(forged(nobodys), nobodys)
    for change in ({"expires": "99999999999"}, {"expires": "1"}, {}):
        call = REQUESTS[route].make(hers)
        query = {**call.query, **change} if change else {}
        assert send(bob, call._replace(query=query)).status_code == 401


def test_a_link_is_for_one_file_of_one_checkpoint(bob: Http, hers: Things) -> None:
    link, archive = hers.file_link, hers.archive_link
    checkpoint_id = link.path.split("/")[2]
    other_id = archive.path.rpartition("/")[2]
    for path in (
        f"/download/{checkpoint_id}/tinkex_adapter.json",
        f"/download/{other_id}/{link.path.rpartition('/')[2]}",
        f"/download/archive/{checkpoint_id}",
        f"/download/merged/{checkpoint_id}/{link.path.rpartition('/')[2]}",
        f"/download/{checkpoint_id}/..%2f..%2ftinkex.db",
    ):
        assert send(bob, Call("GET", path, query=link.query)).status_code in {401, 404}


MIXED: dict[str, Callable[[Things, Things], Call]] = {
    "her weights into my model": lambda mine, hers: Call(
        "POST",
        "/load_weights",
        {
            "session_id": mine.session,
            "model_seq_id": 90,
            "path": f"tinker://{hers.model}/weights/{hers.weights}",
            "optimizer": False,
        },
    ),
    "my sampler of her weights": lambda mine, hers: Call(
        "POST",
        "/create_sampling_session",
        {
            "session_id": mine.session,
            "sampling_session_seq_id": 91,
            "model_path": f"tinker://{hers.model}/weights/{hers.weights}",
        },
    ),
    "my copy of her weights": lambda mine, hers: Call(
        "POST", "/copy_weights", {"source_path": f"tinker://{hers.model}/weights/{hers.weights}"}
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_her_things_inside_my_requests(name: str, bob: Http, hers: Things) -> None:
    mine, nobodys = Things.make(bob), Things.of_nobody()
    answer = send(bob, MIXED[name](mine, hers))
    assert answer.status_code == 404
    assert without_ids(answer, hers) == without_ids(send(bob, MIXED[name](mine, nobodys)), nobodys)


def test_another_owners_weights_fail_to_load_like_unknown_ones(bob: Http, hers: Things) -> None:
    mine = Things.make(bob)

    def load(things: Things, seq_id: int) -> str:
        path = f"tinker://{things.model}/weights/{things.weights}"
        request = {"model_id": mine.model, "seq_id": seq_id, "path": path, "optimizer": False}
        return json.dumps(bob.result(bob.post("load_weights", request)["request_id"])).replace(
            things.model, "<id>"
        )

    assert load(hers, 4) == load(Things.of_nobody(), 5)


def test_a_sequence_number_in_her_space_cannot_be_taken(bob: Http, alice: Http) -> None:
    model = alice.model()
    for seq_id in range(1, 5):
        bob.train(model, seq_id)
        bob.train(model, seq_id, loss_fn="no such loss")
        bob.call("POST", "optim_step", {"model_id": model, "seq_id": seq_id, "adam_params": {}})
        bob.call("POST", "optim_step", {"model_id": model, "seq_id": seq_id, "adam_params": 7})
    for seq_id in range(1, 5):
        assert "metrics" in alice.result(alice.step(model, seq_id)["request_id"])


_is_a_request: ContextVar[bool] = ContextVar("is_a_request", default=False)


class CountingDatabase(Database):
    """A store that counts what requests read and write through it, by function.

    What goes on beside them, in threads and tasks of its own, comes at any time.
    """

    counts: Counter[str]

    def read(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count("read", run)
        return super().read(run, *args, **kwargs)

    def submit(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count("write", run)
        return super().submit(run, *args, **kwargs)

    async def aread(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count("read", run)  # where it calls `read` is no longer the request's context
        return await super().aread(run, *args, **kwargs)

    async def awrite(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count("write", run)
        return await super().awrite(run, *args, **kwargs)

    def _count(self, how: str, run: Callable[..., Any]) -> None:
        if _is_a_request.get():
            self.counts[f"{how} {getattr(run, '_one', run).__name__}"] += 1


def marking_requests(app: ASGIApp) -> ASGIApp:
    """The app, with everything that a request does itself known as such."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        _is_a_request.set(scope["type"] == "http")
        await app(scope, receive, send)

    return marked


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Http, Things, Any]]:
    """Bob on a server in this process, Alice's things there, and the counts of its store."""
    config = null_config(tmp_path_factory.mktemp("counted"), poll_hold_s=0.01)
    process = ServerProcess(config, make_engine=lambda: NullEngine(("null",)))
    db = process._db
    db.__class__, db.counts = CountingDatabase, Counter()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # What counts sockets for the metrics is there, but requests come without any.
        process._http = HttpServer(uvicorn.Config(app), process.stop)
        process._overload = Overload(ConcurrencyLimit(0.5), RateLimit(process._progress, lambda: 0))
        async with process._lifespan(app):
            yield

    app = build_app(process._keyring, process._admission, lifespan)
    with process._opened, TestClient(marking_requests(app), follow_redirects=False) as client:
        alice, bob = (Http(client, keys.new_key()) for _ in range(2))  # type: ignore[arg-type]
        for each in (alice, bob):
            db.write(keys.add, each.api_key, name="test")
        hers = Things.make(alice)
        for route in NAMING:  # whatever is remembered of her things is remembered now
            if route not in CHANGING:
                send(alice, REQUESTS[route].make(hers))
        yield bob, hers, db


@pytest.mark.parametrize("route", NAMING, ids=" ".join)
def test_another_owners_id_takes_the_same_path_as_an_unknown_id(
    route: RouteKey, counted: tuple[Http, Things, Any]
) -> None:
    bob, hers, db = counted
    make = REQUESTS[route].make

    def steps(things: Things) -> Counter[str]:
        db.counts.clear()
        assert send(bob, make(things)).status_code == 404
        of_his_key = {"read find_many"}  # looked up whenever it was not for a while
        return Counter({k: v for k, v in db.counts.items() if k not in of_his_key})

    assert steps(hers) == steps(Things.of_nobody())


def test_ids_cannot_be_guessed(alice: Http, tmp_path: Path) -> None:
    sessions = {alice.session() for _ in range(20)}
    assert len(sessions) == 20
    assert all(len(each.replace("-", "")) == 32 for each in sessions), "128 bits, in hexadecimal"
