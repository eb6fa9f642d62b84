"""What a server does with more submissions than it can answer in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from tinkex.server.overload import SUBMISSIONS, Gate, OverloadMiddleware

TARGET_S = 0.05


def fill(gate: Gate, who: str, count: int) -> None:
    for _ in range(count):
        gate.enter(who)


def test_a_full_room_is_open_to_those_who_have_nothing_inside() -> None:
    gate = Gate(TARGET_S, least=4, most=8)
    fill(gate, "greedy", gate.room)
    assert not gate.has_room("greedy")
    assert gate.has_room("polite")


def test_not_even_strangers_without_end_are_let_in() -> None:
    gate = Gate(TARGET_S, least=4, most=8)
    for number in range(2 * gate.room):
        assert gate.has_room(f"stranger {number}")
        gate.enter(f"stranger {number}")
    assert not gate.has_room("one more")


def work(gate: Gate, count: int, *, took_s: float, now: float) -> None:
    fill(gate, "a", count)
    for _ in range(count):
        gate.leave("a", took_s, now)


def test_the_room_shrinks_while_even_the_quickest_is_slow_but_never_below_the_least() -> None:
    gate = Gate(TARGET_S, least=4, most=100)
    sizes = []
    for tenth in range(100):
        work(gate, gate.room, took_s=2 * TARGET_S, now=tenth / 10)
        sizes.append(gate.room)
    assert sizes[9] == 100, "a burst of a second changes nothing"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 4


def test_a_burst_that_passes_changes_nothing() -> None:
    gate = Gate(TARGET_S, least=4, most=100)
    for tenth in range(100):
        is_slow = tenth % 10 != 0
        work(gate, 100, took_s=2 * TARGET_S if is_slow else TARGET_S / 2, now=tenth / 10)
    assert gate.room == 100


def test_one_quick_submission_shows_that_there_is_no_standing_queue() -> None:
    gate = Gate(TARGET_S, least=4, most=100)
    for tenth in range(100):
        fill(gate, "a", 3)
        gate.leave("a", 1.0, tenth / 10 - 0.02)
        gate.leave("a", TARGET_S / 10, tenth / 10 - 0.01)
        gate.leave("a", 1.0, tenth / 10)
    assert gate.room == 100


def test_the_room_grows_again_when_it_is_used_up_and_all_is_quick() -> None:
    gate = Gate(TARGET_S, least=4, most=100)
    for tenth in range(100):
        work(gate, gate.room, took_s=2 * TARGET_S, now=tenth / 10)
    work(gate, 3, took_s=TARGET_S / 10, now=11.0)
    work(gate, 3, took_s=TARGET_S / 10, now=11.2)
    assert gate.room < 8, "a room that nobody fills need not grow"
    for tenth in range(120, 300):
        work(gate, gate.room, took_s=TARGET_S / 10, now=tenth / 10)
    assert gate.room == 100


class Caller:
    """One request to an application, its messages in both directions in the test's hands."""

    def __init__(self, app: Any, path: str = min(SUBMISSIONS), key: str = "k") -> None:
        self.sent: list[Message] = []
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        headers = [(b"x-api-key", key.encode())]
        self._scope = {"type": "http", "path": path, "headers": headers}
        self.task = asyncio.create_task(app(self._scope, self._inbox.get, self._keep))

    async def _keep(self, message: Message) -> None:
        self.sent.append(message)

    async def body(self, *, is_last: bool = True) -> None:
        """Sends a piece of the body and lets everybody take notice."""
        self._inbox.put_nowait({"type": "http.request", "body": b"x", "more_body": not is_last})
        await self.pause()

    @staticmethod
    async def pause() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


class Inner:
    """An application that reads its request and answers when told."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def gate() -> Gate:
    return Gate(TARGET_S, least=1, most=2)


def test_who_finds_no_room_is_told_at_once_when_to_come_again(gate: Gate) -> None:
    async def scenario() -> None:
        app = OverloadMiddleware(inner := Inner(), gate)
        inside = [Caller(app) for _ in range(gate.room)]
        for each in inside:
            await each.body()
        late = Caller(app)
        await late.pause()
        assert late.status == 429
        assert late.headers[b"retry-after"] == b"1"
        assert 500 <= int(late.headers[b"retry-after-ms"]) < 1500
        assert b"overloaded" in late.sent[1]["body"]
        inner.go.set()
        await asyncio.gather(*(each.task for each in inside))
        again = Caller(app)
        await again.body()
        assert again.status == 200

    asyncio.run(scenario())


def test_a_slow_upload_takes_no_room_until_it_is_whole(gate: Gate) -> None:
    async def scenario() -> None:
        app = OverloadMiddleware(inner := Inner(), gate)
        slow = [Caller(app) for _ in range(10 * gate.room)]
        for each in slow:
            await each.body(is_last=False)
        quick = Caller(app)
        await quick.body()
        inner.go.set()
        await quick.pause()
        assert quick.status == 200
        for each in slow:
            each.task.cancel()

    asyncio.run(scenario())


def test_an_application_that_fails_gives_its_room_back(gate: Gate) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise RuntimeError("a bug")

    async def scenario() -> None:
        app = OverloadMiddleware(broken, gate)
        for _ in range(3 * gate.room):
            failed = Caller(app)
            await failed.body()
            assert failed.task.done()
            assert isinstance(failed.task.exception(), RuntimeError)

    asyncio.run(scenario())


def test_polls_are_never_turned_away(gate: Gate) -> None:
    async def scenario() -> None:
        app = OverloadMiddleware(inner := Inner(), gate)
        inside = [Caller(app) for _ in range(gate.room)]
        for each in inside:
            await each.body()
        poll = Caller(app, path="/api/v1/retrieve_future")
        await poll.body()
        inner.go.set()
        await asyncio.gather(poll.task, *(each.task for each in inside))
        assert poll.status == 200

    asyncio.run(scenario())
