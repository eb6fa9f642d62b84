"""The order of the gate's questions, and that a refusal holds nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from tests.server.gate.owner_keys import OwnerKeys
from tinkex.scheduler.scheduler import Progress
from tinkex.server.errors import Busy
from tinkex.server.gate.admission import Admission
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.gate import Gate
from tinkex.server.gate.overload import Overload
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.http.connection_shares import CLAIM_CONNECTION
from tinkex.wire.limits import Limits

SUBMIT, POLL = "/api/v1/asample", "/api/v1/retrieve_future"


class Scene:
    """A gate whose last question refuses every submission, with room for one request a tenant."""

    def __init__(self) -> None:
        full = ConcurrencyLimit(1.0, least=1, most=1)
        for owner in ("me", "you"):
            full.enter(owner)
        idle = Progress(num_ready=0, num_finished=0, busy_seconds=0.0)
        self.admission = Admission(Limits(max_open_requests=1))
        overload = Overload(full, RateLimit(lambda: idle))
        self.gate = Gate(Response("passed"), OwnerKeys(), self.admission, overload)

    def ask(self, path: str, key: str = "me", **state: Any) -> tuple[int, str]:
        """The status, and what the answer says."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("the body of a refused request is not read")

        headers = [(b"x-api-key", key.encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": headers,
            "state": state,
        }
        asyncio.run(self.gate(scope, receive, send))
        body = sent[1]["body"]
        text = json.loads(body)["detail"] if sent[0]["status"] != 200 else body.decode()
        return sent[0]["status"], text


def refuse_connection(owner: str) -> None:
    raise Busy(f"{owner} has its share of the connections.")


def test_only_submissions_are_refused_under_overload() -> None:
    scene = Scene()
    assert scene.ask(SUBMIT) == (429, "The server is overloaded.")
    assert scene.ask(POLL) == (200, "passed")


def test_a_refused_submission_holds_nothing_of_its_tenant() -> None:
    scene = Scene()
    for _ in range(3):
        assert scene.ask(SUBMIT) == (429, "The server is overloaded.")
    assert scene.ask(POLL) == (200, "passed")


def test_the_limit_of_a_tenant_is_refused_before_overload() -> None:
    scene = Scene()
    ticket = scene.admission.enter("me")
    status, text = scene.ask(SUBMIT)
    assert status == 429
    assert "max_open_requests" in text
    assert scene.ask(SUBMIT, key="you") == (429, "The server is overloaded.")
    ticket.leave()
    assert scene.ask(POLL) == (200, "passed")


def test_a_connection_beyond_its_owners_share_is_refused_before_its_limits() -> None:
    scene = Scene()
    scene.admission.enter("me")
    claim = {CLAIM_CONNECTION: refuse_connection}
    assert scene.ask(SUBMIT, **claim) == (429, "me has its share of the connections.")


@pytest.mark.parametrize("path", [SUBMIT, POLL, "/api/v1/no_such_route"])
def test_an_unknown_key_is_refused_before_all_else(path: str) -> None:
    claim = {CLAIM_CONNECTION: refuse_connection}
    assert Scene().ask(path, key="unknown", **claim)[0] == 401


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/version", "/api/v1/download/x"])
def test_public_paths_need_no_key(path: str) -> None:
    assert Scene().ask(path, key="unknown") == (200, "passed")
