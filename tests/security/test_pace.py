"""Bodies on a real server: slow ones, endless ones, bombs, and more of them than fit."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
import zstandard

from tests.security.campaign import memory_bytes
from tests.server.driving import Http, null_config, training_body
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

LIMITS = Limits(max_body_bytes=4_000_000, max_json_bytes=1_000_000, max_open_body_bytes=6_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    config = null_config(
        tmp_path_factory.mktemp("pace"),
        limits=LIMITS,
        body_silence_s=0.5,
        min_body_bytes_per_s=1000,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def tenant(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, server.api_key)


def start(server: EmbeddedServer, length: int, path: str = "telemetry") -> socket.socket:
    """A connection on which a request has begun whose body is still to come."""
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = (
        f"POST /api/v1/{path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str]]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_a_body_that_stops_is_given_up(server: EmbeddedServer) -> None:
    with start(server, 100) as connection:
        connection.sendall(b"{")
        status, error = answer_of(connection)
    assert (status, error["code"]) == (408, "slow-body")


def test_a_body_that_trickles_is_given_up(server: EmbeddedServer) -> None:
    with start(server, 100_000) as connection:
        connection.settimeout(0.05)
        began = time.monotonic()
        for _ in range(200):  # never silent for long, never quick enough
            try:
                connection.sendall(b"x")
                if connection.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("the server reads at any pace")
    assert time.monotonic() - began < 15


def test_a_body_at_a_fair_pace_is_read(server: EmbeddedServer) -> None:
    body = b'{"events": "' + b"x" * 4000 + b'"}'
    with start(server, len(body)) as connection:
        for at in range(0, len(body), 500):
            connection.sendall(body[at : at + 500])
            time.sleep(0.1)
        assert answer_of(connection)[0] == 200


def test_more_bodies_than_fit_are_refused_with_a_retry_time(
    server: EmbeddedServer, tenant: Http
) -> None:
    with start(server, 3_500_000) as first:
        first.sendall(b"{")
        time.sleep(0.1)
        with start(server, 3_500_000) as second:
            status, error = answer_of(second)
        assert (status, error["code"]) == (429, "rate-limited")
        assert "6000000" in error["detail"]
        assert tenant.session(), "a small request passes all the same"
    time.sleep(0.1)
    with start(server, 3_500_000) as third:
        for _ in range(35):
            third.sendall(b"x" * 100_000)
        assert answer_of(third)[0] == 200, "the first one has given its share back"


def test_json_has_a_limit_of_its_own(tenant: Http) -> None:
    answer = tenant.call("POST", "asample", {"sampling_session_id": "x" * 1_100_000})
    assert answer.status_code == 413
    assert "1000000" in answer.json()["detail"]


def bomb(size: int) -> bytes:
    """A few bytes of zstd that unpack to this many."""
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


@pytest.mark.parametrize("path", ["forward_backward", "create_session", "telemetry"])
def test_bombs_stop_at_the_limit(server: EmbeddedServer, tenant: Http, path: str) -> None:
    packed = bomb(400_000_000)
    headers = {"X-API-Key": tenant.api_key, "Content-Encoding": "zstd"}
    before = memory_bytes(server)
    for _ in range(20):
        answer = tenant.client.post(f"/api/v1/{path}", content=packed, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["code"] == "body-too-large"
    assert memory_bytes(server) - before < 64 << 20


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        zstandard.compress(b"{}") + b"trailing",
        zstandard.compress(b"{}") * 2,
        bytes([0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xFF, 0, 0, 0, 0]),  # a window of gigabytes
        b"\x50\x2a\x4d\x18\xff\xff\xff\xff",  # a frame to skip that is not there
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    ],
)
def test_frames_that_are_none(tenant: Http, packed: bytes) -> None:
    headers = {"X-API-Key": tenant.api_key, "Content-Encoding": "zstd"}
    answer = tenant.client.post("/api/v1/create_session", content=packed, headers=headers)
    assert answer.status_code == 422, answer.text
    assert "Traceback" not in answer.text


def test_a_packed_request_is_still_taken(tenant: Http) -> None:
    headers = {
        "X-API-Key": tenant.api_key,
        "Content-Encoding": "zstd",
        "Content-Type": "application/x-protobuf",
    }
    packed = zstandard.compress(training_body(tenant.model(), 1))
    answer = tenant.client.post("/api/v1/forward_backward", content=packed, headers=headers)
    assert answer.status_code == 200
