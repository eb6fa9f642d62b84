"""One key, or a flood without keys, takes all the connections it can; other keys are served."""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.support.keys import new_tenant_key
from tests.support.raw_http import RawClient, request
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ConnectionBounds
from tinkex.server.embedded import EmbeddedServer

MOST = 160
RESERVE = MOST // 8
FOR_ALL = MOST - RESERVE
ME, POLL = "/api/v1/auth/apikey/me", "/api/v1/retrieve_future"
Connect = Callable[[], RawClient]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that keeps few connections and holds polls for long."""
    config = null_config(
        tmp_path,
        poll_hold_s=60.0,
        scheduler=SchedulerConfig(hole_grace_s=600.0),
        connections=ConnectionBounds(max_connections=MOST),
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def new_key(small: EmbeddedServer, tmp_path: Path) -> Callable[[], str]:
    """Makes a key of a new tenant."""
    return lambda: new_tenant_key(tmp_path)


@pytest.fixture
def connect(small: EmbeddedServer) -> Iterator[Callable[[], RawClient]]:
    """Opens connections that are closed at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(RawClient(small.base_url, timeout_s=60))


def whoami(connection: RawClient, key: str) -> int:
    """The status of a quick request with this key; 0 if the connection was closed."""
    try:
        return connection.ask(request("GET", ME, key=key)).status
    except ConnectionError:
        return 0


def served(small: EmbeddedServer, key: str) -> int:
    """The status of a request on a connection of its own."""
    with RawClient(small.base_url) as connection:
        return whoami(connection, key)


class Waiting:
    """A tenant with an operation that waits for the one before it, and polls for its result."""

    def __init__(self, small: EmbeddedServer, key: str) -> None:
        self.key = key
        self._client = httpx.Client(base_url=small.base_url, timeout=30)
        self._http = Http(self._client, key)
        self._model = self._http.model()
        self._request_id = self._http.step(self._model, 2)["request_id"]
        self._client.close()

    def poll(self, connection: RawClient) -> RawClient:
        """Sends a poll, whose answer does not come before `finish`."""
        body = b'{"request_id": "%b"}' % self._request_id.encode()
        connection.send(request("POST", POLL, key=self.key, body=body))
        return connection

    def finish(self, connection: RawClient) -> None:
        """Sends the operation that is waited for."""
        body = json.dumps({"model_id": self._model, "seq_id": 1, "adam_params": {}}).encode()
        sent = connection.ask(request("POST", "/api/v1/optim_step", key=self.key, body=body))
        assert sent.status == 200, sent


@pytest.fixture
def waiting(small: EmbeddedServer, new_key: Callable[[], str]) -> Waiting:
    return Waiting(small, new_key())


def answered(connections: list[RawClient], count: int) -> list[RawClient]:
    """The connections with an answer to read, once there are so many of them."""
    found: list[RawClient] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} answers came where {count} should"
        found = [each for each in connections if select.select([each.socket], [], [], 0)[0]]
        time.sleep(0.01)
    return found


def check_over_share(connection: RawClient, count: int) -> None:
    """The answer says how many connections the key has, and is the last one."""
    answer = connection.read()
    assert answer.status == 429
    assert answer.json()["code"] == "too-many-connections"
    assert f"{count} connections" in answer.json()["detail"]
    assert float(answer.headers["retry-after"]) > 0
    assert connection.is_closed()


def test_idle_connections_of_one_key_leave_room_for_other_keys(
    small: EmbeddedServer, connect: Connect, new_key: Callable[[], str]
) -> None:
    greedy = new_key()
    for _ in range(2 * MOST):
        assert whoami(connect(), greedy) == 200, "its own oldest idle connection makes room"
    for _ in range(3):
        assert served(small, new_key()) == 200
    other, held = new_key(), []
    for _ in range(MOST // 3):
        held.append(connect())
        assert whoami(held[-1], other) == 200
    assert {whoami(each, other) for each in held} == {200}, "none of them was closed"


def test_polls_of_one_key_leave_room_for_other_keys(
    small: EmbeddedServer, connect: Connect, new_key: Callable[[], str], waiting: Waiting
) -> None:
    polls = [waiting.poll(connect()) for _ in range(2 * MOST)]
    refused = answered(polls, 2 * MOST - FOR_ALL)
    assert len(refused) == 2 * MOST - FOR_ALL
    for each in refused:
        check_over_share(each, FOR_ALL)
    for _ in range(MOST):
        assert served(small, new_key()) == 200, "any number of keys, one after the other"
    held = [each for each in polls if each not in refused]
    held.pop().close()  # what is waited for has to be sent, too
    waiting.finish(connect())
    closed = [each.read() for each in held]
    assert {each.status for each in closed} == {200}, "no poll that was let in is lost"
    assert sum(each.headers.get("connection") == "close" for each in closed) <= 1, (
        "no more than were open at once beside them"
    )


def test_two_greedy_keys_leave_room_for_a_third(
    small: EmbeddedServer, connect: Connect, new_key: Callable[[], str], waiting: Waiting
) -> None:
    polls = [waiting.poll(connect()) for _ in range(2 * MOST)]
    answered(polls, 2 * MOST - FOR_ALL)
    second = Waiting(small, new_key())
    later = [second.poll(connect()) for _ in range(MOST)]
    refused = answered(later, MOST - RESERVE // 2)
    check_over_share(refused[0], RESERVE // 2)
    assert served(small, new_key()) == 200
    ended = answered(polls, 2 * MOST - FOR_ALL)
    next(each for each in polls if each not in ended).half_close()
    waiting.finish(connect())
    answered(polls, 2 * MOST)
    more = [second.poll(connect()) for _ in range(MOST // 3)]
    assert not answered(more, 0), "the first one's connections are closed for the second's"
    assert served(small, new_key()) == 200


def test_polls_of_a_client_that_may_be_gone_make_room_first(
    small: EmbeddedServer, connect: Connect, new_key: Callable[[], str], waiting: Waiting
) -> None:
    for _ in range(FOR_ALL):
        waiting.poll(connect()).half_close()
    again = [waiting.poll(connect()) for _ in range(FOR_ALL)]
    assert served(small, new_key()) == 200
    assert not answered(again, 0), "the same client comes back with as many"


def test_a_flood_without_keys_leaves_room_for_keys(
    small: EmbeddedServer, connect: Connect, new_key: Callable[[], str]
) -> None:
    key = new_key()
    before = connect()
    assert whoami(before, key) == 200
    flood = [connect() for _ in range(3 * MOST)]
    for each in flood[::2]:
        with contextlib.suppress(OSError):
            each.send(b"GET /healthz HTTP/1.1\r\nHost:")
    for _ in range(5):
        assert served(small, key) == 200
        flood += [connect() for _ in range(MOST // 4)]
    assert whoami(before, key) == 200, "a connection that showed a key is not closed for them"
