"""Connections that flood, dawdle or never end: each is let go, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.security.mutations import damage
from tests.support.serving import Address, serving
from tests.support.soak import SEED, amount
from tinkex.server.config import ConnectionBounds
from tinkex.server.http.headers import HeadMiddleware
from tinkex.server.listen.connections import bounded

BOUNDS = ConnectionBounds(
    max_connections=20,
    max_head_bytes=16 * 1024,
    max_headers=40,
    head_timeout_s=0.4,
    write_timeout_s=0.4,
)
GET = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
HEADS = [b"HTTP/1.1 200 OK\r\n\r\n"] * 3


async def application(scope, receive, send) -> None:
    """`/quick` answers at once, `/slow` after a second, `/large` with more than buffers hold,
    `/heads` piece by piece with what looks like the heads of answers."""
    assert scope["type"] == "http"
    request = Request(scope, receive)
    if request.url.path == "/heads":
        await StreamingResponse(HEADS)(scope, receive, send)
        return
    if request.url.path == "/slow":
        await asyncio.sleep(1.0)
    if request.url.path == "/body":
        assert await request.body() == b"body"
    body = bytes(30_000_000) if request.url.path == "/large" else b"here"
    status = 200 if request.method in {"GET", "POST"} else 405
    await Response(body, status)(scope, receive, send)


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"], scope="module")
def address(request: pytest.FixtureRequest) -> Iterator[Address]:
    """A server of bounded connections, in a thread."""
    app = HeadMiddleware(application, BOUNDS)
    most = BOUNDS.max_head_bytes
    with serving(app, bounded(request.param, BOUNDS), h11_max_incomplete_event_size=most) as where:
        yield where


@pytest.fixture
def connect(address: Address) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections that are closed at the end."""
    opened: list[socket.socket] = []

    def make() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=10))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # until the server has noticed that they are gone
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://{address[0]}:{address[1]}/quick").status_code == 200:
                return
    raise AssertionError("the server no longer answers")


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def pour(connection: socket.socket, piece: bytes, times: int, every_s: float = 0.0) -> int:
    """How many pieces could be sent before the server had enough."""
    for sent in range(times):
        try:
            connection.sendall(piece)
        except OSError:
            return sent
        time.sleep(every_s)
    return times


def test_an_ordinary_request_is_served(connect) -> None:
    connection = connect()
    for _ in range(3):
        connection.sendall(GET)
        assert b"200 OK" in connection.recv(65536)


def test_an_answer_comes_in_one_piece(connect) -> None:
    connection = connect()
    for _ in range(5):
        connection.sendall(GET)
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert body == b"here"


def test_requests_in_a_row_have_their_answers_in_a_row(connect) -> None:
    last = b"HEAD /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    connection = connect()
    connection.sendall(3 * GET + last)
    received = read_all(connection)
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.count(b"here") == 3
    assert received.count(b"HTTP/1.1 405") == 1
    assert received.endswith(b"\r\n\r\n")


def test_a_head_request_does_not_keep_its_answer_back(connect) -> None:
    connection = connect()
    for _ in range(2):
        connection.sendall(GET.replace(b"GET", b"HEAD"))
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 405")
        assert answer.endswith(b"\r\n\r\n")


def test_answers_come_to_a_client_that_sends_no_more(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + 2 * GET)
    connection.shutdown(socket.SHUT_WR)
    assert read_all(connection).count(b"here") == 3


def test_what_cannot_be_parsed_gets_one_of_our_errors(connect) -> None:
    connection = connect()
    connection.sendall(b"nonsense\r\n\r\n")
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["code"] == "malformed-request"


def test_a_body_that_looks_like_a_head_is_not_kept_back(address: Address) -> None:
    answer = httpx.get(f"http://{address[0]}:{address[1]}/heads", timeout=5)
    assert answer.content == b"".join(HEADS)


def test_an_interim_answer_is_not_kept_back(connect) -> None:
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    connection = connect()
    connection.sendall(head)
    assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
    connection.sendall(b"body")
    assert connection.recv(65536).endswith(b"here")


def test_a_connection_that_says_nothing_is_closed(connect) -> None:
    began = time.monotonic()
    assert read_all(connect()) == b""
    assert time.monotonic() - began < 8


def test_a_head_that_never_ends_is_given_up(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /quick HTTP/1.1\r\nHost: x\r\n")
    assert pour(connection, b"X-A: b\r\n", 200, every_s=0.05) < 200


def test_so_is_the_second_one_of_a_connection(connect) -> None:
    connection = connect()
    connection.sendall(GET)
    assert b"200 OK" in connection.recv(65536)
    assert pour(connection, b"G", 200, every_s=0.05) < 200


def test_one_endless_header_is_cut_off(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /quick HTTP/1.1\r\nX: ")
    assert pour(connection, b"a" * 8192, 20_000) < 20_000


def test_a_head_poured_in_while_a_request_is_answered_is_cut_off(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /quick HTTP/1.1\r\nX: ")
    began = time.monotonic()
    connection.settimeout(1.0)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < 100_000_000 and time.monotonic() - began < 3:
            sent += connection.send(b"a" * 65536)
    assert sent < 100_000_000, "the server took in a head of 100 MB"


def test_too_many_headers_are_named(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /quick HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 40 + b"\r\n")
    answer = connection.recv(65536)
    assert b"431" in answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert error["code"] == "head-too-large"
    assert "41 headers" in error["detail"]
    assert "40" in error["detail"]


@pytest.mark.parametrize("where", ["path", "header"])
def test_a_head_that_is_too_long(where: str, connect) -> None:
    connection = connect()
    text = b"a" * 20_000
    path, header = (text, b"x") if where == "path" else (b"x", text)
    connection.sendall(b"GET /%b HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (path, header))
    try:
        answer = connection.recv(65536)
    except ConnectionResetError:
        answer = b""
    assert answer == b"" or b" 431 " in answer or b" 400 " in answer


def test_the_rest_of_a_refused_body_is_not_waited_for(connect) -> None:
    connection = connect()
    connection.sendall(b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert b"200 OK" in connection.recv(65536)
    assert pour(connection, b"a", 200, every_s=0.05) < 200


def test_a_client_that_does_not_read_is_let_go(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(1.5)
    assert len(read_all(connection)) < 30_000_000


def test_a_slow_answer_is_not_taken_for_a_slow_client(connect) -> None:
    connection = connect()
    connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in connection.recv(65536), "head and write timeouts are shorter than this"


def test_one_connection_too_many_is_refused(connect, address: Address) -> None:
    held = [connect() for _ in range(BOUNDS.max_connections)]
    for each in held:
        each.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    began = time.monotonic()
    answer = httpx.get(f"http://{address[0]}:{address[1]}/quick")
    assert answer.status_code == 503
    assert answer.json()["code"] == "over-capacity"
    assert float(answer.headers["retry-after"]) > 0
    assert answer.headers["connection"] == "close"
    assert time.monotonic() - began < 1.0, "an answer of overload is quick"
    for each in held:
        assert b"200 OK" in each.recv(65536), "those that were there are served"


def test_a_flood_of_connections_is_survived(connect) -> None:
    flood = []
    for _ in range(5 * BOUNDS.max_connections):
        with contextlib.suppress(OSError):
            flood.append(connect())
    assert sum(read_all(each) == b"" for each in flood) == len(flood)


ODD = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\r\n\r\n",
    b"\x00" * 1000,
    b"\r\n" * 1000,
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%00%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /quick HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /quick HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"GET /quick HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET /quick HTTP/1.1\r\n Folded: x\r\n\r\n",
    b"GET http://evil.example/quick HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /quick HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


def test_what_is_not_http_is_refused(connect) -> None:
    assert len(ODD) < BOUNDS.max_connections
    opened = [connect() for _ in ODD]
    for connection, raw in zip(opened, ODD, strict=True):
        connection.sendall(raw)
    for connection, raw in zip(opened, ODD, strict=True):
        first = connection.recv(65536)
        status = first.split(b" ", 2)[1] if first else b""
        assert status[:1] in b"24" or status == b"501", (raw, first)  # 501: a transfer coding
        assert b"Traceback" not in first


@pytest.mark.soak
def test_damaged_requests_on_the_wire(address: Address) -> None:
    whole = (
        b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 12\r\nX-API-Key: tml-x\r\nConnection: keep-alive\r\n\r\n"
        b'{"a": [1,2]}' + GET
    )
    for number in range(amount(60, 2000)):
        raw = damage(random.Random(f"{SEED}-raw-{number}"), whole)
        with socket.create_connection(address, timeout=10) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert not answer or answer.split(b" ", 2)[1][:1] in b"24", (SEED, number, raw, answer)
