"""Whose request is worked on next: order and shares, by counts and never by the clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.server.gate.owner_keys import OwnerKeys
from tests.support.load.wire import connect
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.admission import Admission, ReleasedSlot
from tinkex.server.gate.fair_semaphore import FairSemaphore
from tinkex.server.gate.gate import Gate
from tinkex.wire.limits import DEFAULT_LIMITS


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Crowd:
    """Requests that take a turn, work until told, and note the order in which they began."""

    def __init__(self, slots: FairSemaphore) -> None:
        self._turns = slots
        self.began: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, owner: str, count: int, steps: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._work(owner, steps)))

    async def _work(self, owner: str, steps: int) -> None:
        await self._turns.acquire(owner)
        self.began.append(owner)
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
        finally:
            self._turns.release(owner)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks)


def test_a_newcomer_does_not_wait_behind_a_crowd() -> None:
    async def scene() -> list[str]:
        crowd = Crowd(FairSemaphore(width=8, most=6))
        crowd.send("greedy", 500)
        await asyncio.sleep(0)
        crowd.send("polite", 1)
        await crowd.finish()
        return crowd.began

    began = asyncio.run(scene())
    assert len(began) == 501
    assert began.index("polite") <= 6 + 8, "behind those at work and one round, not behind 500"


def test_those_who_wait_are_served_in_turn() -> None:
    async def scene() -> list[str]:
        crowd = Crowd(FairSemaphore(width=4, most=3))
        for owner, count in (("a", 300), ("b", 30), ("c", 30)):
            crowd.send(owner, count)
        await crowd.finish()
        return crowd.began

    began = asyncio.run(scene())
    shares = Counter(began[:90])
    assert max(shares.values()) - min(shares.values()) <= 4, shares
    assert Counter(began) == {"a": 300, "b": 30, "c": 30}, "and none is forgotten"


def test_one_tenant_cannot_hold_every_turn() -> None:
    async def scene() -> tuple[int, int]:
        slots = FairSemaphore(width=8, most=6)
        crowd = Crowd(slots)
        crowd.send("stuck", 50, steps=10_000)
        await settle()
        held = len(crowd.began)
        crowd.send("other", 5)
        await settle()
        served = crowd.began.count("other")
        for task in crowd.tasks:
            task.cancel()
        await asyncio.gather(*crowd.tasks, return_exceptions=True)
        return held, served

    held, served = asyncio.run(scene())
    assert held == 6
    assert served == 5


def test_a_waiter_that_is_cancelled_holds_no_slot() -> None:
    async def scene() -> list[str]:
        crowd = Crowd(FairSemaphore(width=1, most=1))
        crowd.send("a", 1, steps=30)
        await settle()
        crowd.send("a", 20)
        crowd.send("b", 20)
        await settle()
        for task in crowd.tasks[1::2]:
            task.cancel()
        await asyncio.gather(*crowd.tasks, return_exceptions=True)
        late = Crowd(crowd._turns)
        late.send("c", 3)
        await asyncio.wait_for(late.finish(), 5)
        return late.began

    assert asyncio.run(scene()) == ["c", "c", "c"]


class Doors:
    """An application behind the gate with a single slot, and what was answered."""

    def __init__(self, app: ASGIApp) -> None:
        admission = Admission(DEFAULT_LIMITS)
        admission.slots = FairSemaphore(width=1, most=1)
        self._app = Gate(app, OwnerKeys(), admission)
        self.answered: list[str] = []
        self.is_read = asyncio.Event()  # set: clients read their answers
        self.is_read.set()

    def ask(self, path: str) -> asyncio.Task[None]:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered.append(path)
            await self.is_read.wait()

        async def receive() -> Message:
            raise AssertionError("there is no body")

        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"x-api-key", b"me")]}
        return asyncio.create_task(self._app(scope, receive, send))


def test_a_request_that_waits_for_something_lets_others_work() -> None:
    async def scene() -> tuple[list[str], list[str]]:
        go = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/poll":
                async with ReleasedSlot():
                    await go.wait()
            await Response("")(scope, receive, send)

        doors = Doors(app)
        tasks = [doors.ask("/poll"), doors.ask("/quick")]
        await settle()
        before = list(doors.answered)
        go.set()
        await asyncio.gather(*tasks)
        return before, doors.answered

    assert asyncio.run(scene()) == (["/quick"], ["/quick", "/poll"])


def test_a_client_that_does_not_read_its_answer_holds_no_turn() -> None:
    async def scene() -> list[str]:
        doors = Doors(Response(""))
        doors.is_read.clear()
        tasks = [doors.ask("/slow reader"), doors.ask("/other")]
        await settle()
        answered = list(doors.answered)
        doors.is_read.set()
        await asyncio.gather(*tasks)
        return answered

    assert asyncio.run(scene()) == ["/slow reader", "/other"]


def test_a_request_that_fails_releases_its_slot() -> None:
    async def scene() -> list[str]:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/broken":
                raise RuntimeError("a bug")
            await Response("")(scope, receive, send)

        doors = Doors(app)
        tasks = [doors.ask("/broken"), doors.ask("/fine")]
        await asyncio.gather(*tasks, return_exceptions=True)
        return doors.answered

    assert asyncio.run(scene()) == ["/fine"]


def test_on_a_real_server_one_request_is_answered_amidst_the_burst_of_another_tenant(
    server: EmbeddedServer, make_key: Callable[[], str]
) -> None:
    """Of 600 requests that came before it, most are answered after it."""
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    keys = {"greedy": make_key(), "polite": make_key()}
    body = b'{"tags": [], "user_metadata": {}, "sdk_version": "0"}'

    async def scene() -> list[tuple[str, int]]:
        answered: list[tuple[str, int]] = []
        all_answered = asyncio.Event()
        owners = ["polite", *["greedy"] * 600]
        wires = [await connect(host, int(port)) for _ in owners]

        def note(owner: str, status: int) -> None:
            answered.append((owner, status))
            if len(answered) == len(owners):
                all_answered.set()

        for owner, wire in reversed(list(zip(owners, wires, strict=True))):
            request = (
                "POST /api/v1/create_session HTTP/1.1\r\nHost: x\r\n"
                f"X-API-Key: {keys[owner]}\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode() + body
            wire.send(request, lambda status, _head, _body, owner=owner: note(owner, status))
        await all_answered.wait()
        for wire in wires:
            wire.close()
        return answered

    answered = asyncio.run(scene())
    assert {status for _, status in answered} == {200}
    assert answered.index(("polite", 200)) < 300
