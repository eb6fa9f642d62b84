"""While the server is tight, plain submissions are refused as bytes; all else goes the long way."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.support.serving import Address, serving
from tinkex.scheduler.scheduler import Progress
from tinkex.server.config import ConnectionBounds
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.early_refusal import EarlyRefusal
from tinkex.server.gate.overload import OverloadGate
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.listen.connections import bounded

FULL = ConcurrencyLimit(1.0, least=1, most=1)
FULL.enter("somebody")
FULL.enter("somebody else")  # twice the size: nobody else comes in


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Says that a request was parsed, and what it carried."""
    body = await Request(scope, receive).body()
    await Response(b"parsed " + body)(scope, receive, send)


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"], scope="module")
def address(request: pytest.FixtureRequest) -> Iterator[Address]:
    rate = RateLimit(lambda: Progress(num_ready=0, num_finished=0, busy_seconds=0.0))
    gate = OverloadGate(FULL, rate, lambda key: "me" if key == "Mine" else None)
    protocol = bounded(request.param, ConnectionBounds(), EarlyRefusal(gate))
    with serving(application, protocol) as where:
        yield where


@pytest.fixture
def connection(address: Address) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=10) as opened:
        yield opened


def post(
    path: str = "/api/v1/asample",
    *headers: str,
    key: str = "Mine",
    body: bytes = b"{}",
    length: str = "Content-Length: 2",
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"X-API-Key: {key}", length, *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Status line and body of one answer."""
    with connection.makefile("rb") as stream:
        status = stream.readline()
        length = 0
        while (line := stream.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status.split(b" ", 1)[1].strip(), stream.read(length)


def test_a_plain_submission_is_told_to_come_again(connection: socket.socket) -> None:
    for path in ("asample", "forward", "forward_backward", "optim_step"):
        connection.sendall(post(f"/api/v1/{path}", "Connection: keep-alive"))
        received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"\r\nretry-after: 1\r\n" in received
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert b"overloaded" in body


def test_the_connection_goes_on(connection: socket.socket) -> None:
    for _ in range(3):
        connection.sendall(post())
        assert answer(connection)[0] == b"429 Too Many Requests"
        connection.sendall(post("/api/v1/retrieve_future"))
        assert answer(connection) == (b"200 OK", b"parsed {}")


@pytest.mark.parametrize(
    "request_",
    [
        post("/api/v1/retrieve_future"),
        post("/api/v1/asample?a=b"),
        post(key="mine"),  # nobody knows it: it is refused elsewhere
        post("/api/v1/asample", "Connection: close"),
        post(length="Content-Type: application/json\r\ncontent-LENGTH:2"),
        post(length="Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
    ],
    ids=["route", "query", "key", "close", "spelling", "chunked"],
)
def test_what_is_parsed(connection: socket.socket, request_: bytes) -> None:
    connection.sendall(request_)
    status, body = answer(connection)
    if b"LENGTH" in request_:  # however it is spelled, it is plain
        assert status == b"429 Too Many Requests"
    else:
        assert (status, body) == (b"200 OK", b"parsed {}")


def test_a_request_in_pieces_is_parsed(connection: socket.socket, address: Address) -> None:
    whole = post(body=b"x" * 40, length="Content-Length: 40")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(whole[:30])
    with socket.create_connection(address, timeout=10) as other:  # the server has read the piece
        other.sendall(post())
        answer(other)
    connection.sendall(whole[30:])
    assert answer(connection) == (b"200 OK", b"parsed " + b"x" * 40)


def test_a_body_that_reads_like_a_submission_is_a_body(
    connection: socket.socket, address: Address
) -> None:
    inner = post()
    outer = post("/api/v1/telemetry", body=b"", length=f"Content-Length: {len(inner)}")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(outer)
    with socket.create_connection(address, timeout=10) as other:
        other.sendall(post())
        answer(other)
    connection.sendall(inner)
    assert answer(connection) == (b"200 OK", b"parsed " + inner)


def test_two_requests_at_once_are_parsed(connection: socket.socket) -> None:
    connection.sendall(2 * post())
    assert answer(connection) == (b"200 OK", b"parsed {}")
