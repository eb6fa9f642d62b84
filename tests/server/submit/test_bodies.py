"""Bodies: each route has its limit, and a compressed body is taken whole or refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from tests.server.driving import Http, training_body
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.http.body_limits import body_limit
from tinkex.wire.limits import DEFAULT_LIMITS, Limits

CONTROL = [
    "create_session",
    "session_heartbeat",
    "create_model",
    "optim_step",
    "save_weights",
    "load_weights",
    "retrieve_future",
    "retrieve_futures",
    "cancel_future",
    "sessions/search",
    "client/config",
]


def begin(server: EmbeddedServer, path: str, *headers: str) -> socket.socket:
    """A connection on which the head of a request was sent."""
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    lines = [
        f"POST /api/v1/{path} HTTP/1.1",
        "Host: x",
        f"X-API-Key: {server.api_key}",
        "Content-Type: application/json",
        *headers,
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def answer_on(connection: socket.socket) -> tuple[int, Any]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("path", CONTROL)
def test_a_control_body_that_is_declared_too_long_is_refused_unread(
    server: EmbeddedServer, path: str
) -> None:
    with begin(server, path, "Content-Length: 27000000") as connection:
        if path in {"optim_step", "save_weights", "load_weights"}:
            connection.sendall(b'{"model_id":"x:train:0","seq_id":1,')  # enough for the number
        status, said = answer_on(connection)
    assert (status, said["code"]) == (413, "body-too-large")
    assert "27000000" in said["detail"]


@pytest.mark.parametrize("path", CONTROL)
def test_a_chunked_control_body_is_cut_off_once_it_is_too_long(
    server: EmbeddedServer, path: str
) -> None:
    piece = b'{"model_id":"x:train:0","seq_id":1,"more":"' + bytes(60_000).replace(b"\0", b"a")
    with begin(server, path, "Transfer-Encoding: chunked") as connection:
        for _ in range(30):
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        status, said = answer_on(connection)  # the body has no end
    assert (status, said["code"]) == (413, "body-too-large")


def test_a_compressed_control_body_is_bounded_after_decompression(http: Http) -> None:
    body = json.dumps({"tags": [], "sdk_version": "1", "user_metadata": {"k": "v" * 3_000_000}})
    answer = post(http, "create_session", zstandard.compress(body.encode()), "application/json")
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


def test_what_control_requests_may_hold_fits() -> None:
    tags = ["é" * DEFAULT_LIMITS.max_text_chars] * 100
    metadata = {"k": "é" * ((DEFAULT_LIMITS.max_metadata_bytes - 10) // 2)}
    body = {"tags": tags, "sdk_version": "1", "user_metadata": metadata, "display_name": "é" * 1024}
    sent = len(json.dumps(body, ensure_ascii=False, indent=1).encode())
    assert sent < body_limit("/api/v1/create_session", DEFAULT_LIMITS)
    ids = json.dumps({"target": {}, "retrieved_request_ids": ["0" * 32] * 20_000}).encode()
    assert len(ids) < body_limit("/api/v1/retrieve_futures", DEFAULT_LIMITS)


def test_the_limit_of_each_route() -> None:
    limits = Limits(
        max_body_bytes=9_000_000, max_json_bytes=8_000_000, max_metadata_bytes=1_000_000
    )
    for path in ("/api/v1/forward_backward", "/api/v1/forward"):
        assert body_limit(path, limits) == 9_000_000
        assert body_limit(path, limits, is_json=True) == 8_000_000
    assert body_limit("/api/v1/asample", limits) == 8_000_000
    assert body_limit("/api/v1/session_heartbeat", limits) == limits.max_control_bytes
    assert body_limit("/api/v1/no_such_route", limits) == limits.max_control_bytes
    assert body_limit("/api/v1/create_model", limits) > 3 * limits.max_metadata_bytes
    tiny = Limits(max_body_bytes=1000, max_json_bytes=8_000_000)
    assert body_limit("/api/v1/create_session", tiny) == body_limit("/api/v1/asample", tiny) == 1000


def post(
    http: Http, path: str, body: bytes, kind: str = "application/x-protobuf", packing: str = "zstd"
) -> httpx.Response:
    headers = {"X-API-Key": http.api_key, "Content-Type": kind, "Content-Encoding": packing}
    return http.client.post(f"/api/v1/{path}", content=body, headers=headers)


def in_frames(body: bytes, num_frames: int) -> bytes:
    size = -(-len(body) // num_frames)
    return b"".join(zstandard.compress(body[at : at + size]) for at in range(0, len(body), size))


def test_all_frames_of_a_body_are_taken(http: Http) -> None:
    model, before = http.model(), http.model()
    body = training_body(model, 1, tokens=50, copies=40)
    split = post(http, "forward_backward", in_frames(body, 3))
    plain = training_body(before, 1, tokens=50, copies=40)
    whole = post(http, "forward_backward", plain, packing="identity")
    outputs = [http.result(each.json()["request_id"])["loss_fn_outputs"] for each in (split, whole)]
    assert [len(each) for each in outputs] == [40, 40]


def test_a_frame_that_holds_no_data_is_passed_over(http: Http) -> None:
    model = http.model()
    comment = bytes.fromhex("502a4d1804000000") + b"note"
    body = comment + zstandard.compress(training_body(model, 1)) + zstandard.compress(b"") + comment
    assert post(http, "forward_backward", body).status_code == 200


def cut_after_first_block(body: bytes) -> bytes:
    """A frame of several blocks of which only the first came."""
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    start = zstandard.frame_header_size(packed)
    size = int.from_bytes(packed[start : start + 3], "little") >> 3
    assert start + 3 + size < len(packed)
    return packed[: start + 3 + size]


BROKEN = {
    "cut in the middle": lambda body: zstandard.compress(body)[:-7],
    "cut after its first block": cut_after_first_block,
    "second frame cut": lambda body: in_frames(body, 2)[:-7],
    "bytes behind the frame": lambda body: zstandard.compress(body) + b"more",
    "not compressed": lambda body: body,
    "empty": lambda body: b"",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_compressed_body_that_is_not_whole_is_refused(http: Http, how: str) -> None:
    model = http.model()
    body = training_body(model, 1, tokens=300, copies=200)
    answer = post(http, "forward_backward", BROKEN[how](body))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-compression")
    assert answer.json()["hint"]


def test_frames_without_end_are_refused(http: Http) -> None:
    answer = post(http, "telemetry", zstandard.compress(b"") * 20_000)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-compression")
    assert "frames" in answer.json()["detail"]


@pytest.mark.parametrize("packing", ["gzip", "deflate", "br", "zstd, zstd"])
def test_other_compressions_are_refused_by_name(http: Http, packing: str) -> None:
    answer = post(http, "telemetry", b"{}", packing=packing)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-encoding")
    assert packing in answer.json()["detail"]


def test_a_data_body_of_millions_of_keys_is_refused_by_their_number(http: Http) -> None:
    entries = ",".join(f'"k{n}":1' for n in range(300_000))
    body = f'{{"prompt":{{"chunks":[]}},"sampling_params":{{"max_tokens":1}},"x":{{{entries}}}}}'
    answer = post(http, "asample", body.encode(), "application/json", "identity")
    assert answer.status_code == 422
    assert "100000 keys" in answer.json()["detail"]


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("is_open", [True, False])
def test_refused_bodies_are_not_kept_with_their_connections(
    server: EmbeddedServer, is_open: bool
) -> None:
    """Connections that stay open, and closed ones before the next full garbage collection."""
    refused = b"\x07" + b"x" * 16_000_000  # names neither a model nor a number
    headers = {"X-API-Key": server.api_key, "Content-Type": "application/x-protobuf"}
    with contextlib.ExitStack() as open_clients:
        before = resident_bytes(server.pid)
        for _ in range(12):
            client = httpx.Client(base_url=server.base_url, headers=headers, timeout=60)
            open_clients.callback(client.close)
            answer = client.post("/api/v1/forward_backward", content=refused)
            assert answer.status_code == 422, answer.text
            if not is_open:
                client.close()
        assert resident_bytes(server.pid) - before < 6 * len(refused)
