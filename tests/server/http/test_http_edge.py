"""HTTP on a raw socket to a real server: what requests at the edge of the protocol are answered."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.driving import Http
from tests.support.raw_http import Answer, RawClient, request
from tinkex.server.embedded import EmbeddedServer

CONFIG = "/api/v1/client/config"
EXPECT = "Expect: 100-continue"
BODY = b'{"sdk_version": "0.36.0"}'


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[RawClient]:
    """A connection to the shared server."""
    with RawClient(server.base_url) as client:
        yield client


def check_typed(answer: Answer, status: int, code: str) -> None:
    """An error has the JSON body of all errors."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()
    assert error["code"] == code
    assert error["detail"]
    assert set(error) == {"detail", "code", "hint"}


def plain(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "date"}


# HEAD ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/healthz", "/api/v1/healthz", "/api/v1/version", "/api/v1/get_server_capabilities"]
)
def test_head_has_the_headers_of_get_and_no_body(
    raw: RawClient, server: EmbeddedServer, path: str
) -> None:
    for _ in range(3):
        head = raw.ask(request("HEAD", path, key=server.api_key))
        got = raw.ask(request("GET", path, key=server.api_key))
        assert head.status == got.status == 200
        assert plain(head.headers) == plain(got.headers)
        assert int(head.headers["content-length"]) == len(got.body) > 0
        assert head.body == b""


def test_head_of_a_route_without_get_is_405(raw: RawClient, server: EmbeddedServer) -> None:
    refused = raw.ask(request("HEAD", "/api/v1/asample", key=server.api_key))
    assert refused.status == 405
    assert refused.headers["content-type"] == "application/json"
    assert refused.headers["allow"] == "POST"
    posted = raw.ask(request("PATCH", "/api/v1/asample", key=server.api_key))
    check_typed(posted, 405, "wrong-method")
    assert len(posted.body) == int(refused.headers["content-length"])
    assert raw.ask(request("GET", "/healthz")).status == 200, "the connection goes on"


def test_head_needs_a_key_too(raw: RawClient) -> None:
    assert raw.ask(request("HEAD", "/api/v1/sessions")).status == 401
    assert raw.ask(request("HEAD", "/nowhere")).status == 401
    assert raw.ask(request("GET", "/healthz")).status == 200


# Half-closed connections --------------------------------------------------------------------------


def test_a_post_before_a_half_close_is_answered(raw: RawClient, server: EmbeddedServer) -> None:
    raw.send(request("POST", CONFIG, key=server.api_key, body=BODY))
    raw.half_close()
    answer = raw.read()
    assert answer.status == 200
    assert answer.json()["proto_compress_fwdbwd"] is True
    assert raw.is_closed()


def test_a_held_poll_before_a_half_close_is_answered(raw: RawClient, http: Http) -> None:
    model = http.model()
    waits = http.step(model, 2)["request_id"]  # for number 1, which comes late
    raw.send(
        request(
            "POST",
            "/api/v1/retrieve_future",
            "Accept: application/json",
            key=http.api_key,
            body=b'{"request_id": "%b"}' % waits.encode(),
        )
    )
    raw.half_close()
    http.step(model, 1)
    assert raw.read().status == 200
    assert raw.is_closed()


def test_every_pipelined_request_before_a_half_close_is_answered(
    raw: RawClient, server: EmbeddedServer
) -> None:
    one = request("POST", CONFIG, key=server.api_key, body=BODY)
    raw.send(2 * one + request("HEAD", "/healthz") + one)
    raw.half_close()
    answers = [raw.read(is_head=number == 2) for number in range(4)]
    assert [each.status for each in answers] == [200] * 4
    assert answers[0].body == answers[1].body == answers[3].body != b""
    assert raw.is_closed()


@pytest.mark.parametrize("cut", [20, 60, -1], ids=["line", "headers", "body"])
def test_a_request_cut_by_a_half_close_gets_an_error(
    raw: RawClient, server: EmbeddedServer, cut: int
) -> None:
    raw.send(request("POST", CONFIG, key=server.api_key, body=BODY)[:cut])
    raw.half_close()
    check_typed(raw.read(), 400, "malformed-request")
    assert raw.is_closed()


# Expect: 100-continue -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CONFIG, "/api/v1/forward_backward", "/api/v1/asample"])
def test_a_body_too_large_is_refused_before_100_continue(
    raw: RawClient, server: EmbeddedServer, path: str
) -> None:
    length = f"Content-Length: {1 << 30}"
    answer = raw.ask(request("POST", path, EXPECT, length, key=server.api_key))
    check_typed(answer, 413, "body-too-large")
    assert str(1 << 30) in answer.json()["detail"]
    assert answer.headers["connection"] == "close", "the next bytes could be the body"
    assert raw.is_closed()


def test_a_body_without_a_key_gets_no_100_continue(raw: RawClient) -> None:
    answer = raw.ask(request("POST", CONFIG, EXPECT, "Content-Length: 2"))
    check_typed(answer, 401, "unauthenticated")
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()


def test_an_acceptable_body_gets_100_continue(raw: RawClient, server: EmbeddedServer) -> None:
    for _ in range(2):
        length = f"Content-Length: {len(BODY)}"
        head = request("POST", CONFIG, EXPECT, length, key=server.api_key)
        assert raw.ask(head).status == 100
        answer = raw.ask(BODY)
        assert answer.status == 200
        assert "connection" not in answer.headers


# Host ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["", "Host: x\r\nHost: x", "Host: x\r\nhost: y"])
def test_a_request_has_one_host(raw: RawClient, server: EmbeddedServer, host: str) -> None:
    answer = raw.ask(request("GET", "/healthz", host=host))
    check_typed(answer, 400, "malformed-request")
    assert "Host" in answer.json()["detail"]
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()
    with RawClient(server.base_url) as other:
        check_typed(
            other.ask(request("POST", CONFIG, key=server.api_key, host=host, body=BODY)),
            400,
            "malformed-request",
        )


@pytest.mark.parametrize(
    "host", ["a b", "a/b", "user@x", "a:b:c", "x:80a", "[::1", "::1", "x\xe9", "a\\b", "%zz", "<x>"]
)
def test_a_host_that_is_none_is_refused(raw: RawClient, host: str) -> None:
    answer = raw.ask(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    check_typed(answer, 400, "malformed-request")
    assert "Host" in answer.json()["detail"]
    assert raw.is_closed()


@pytest.mark.parametrize(
    "host",
    [
        "x",
        "x:80",
        "x:",
        "a_b.example",
        "127.0.0.1:8000",
        "[::1]:80",
        "[fe80::1%25eth0]",
        "a%20b",
        "",
    ],
)
def test_a_host_is_a_name_or_an_address(raw: RawClient, host: str) -> None:
    assert raw.ask(request("GET", "/healthz", host=f"Host: {host}")).status == 200


def test_http_1_0_needs_no_host(raw: RawClient) -> None:
    assert raw.ask(b"GET /healthz HTTP/1.0\r\n\r\n").status == 200
    assert raw.is_closed()


# What cannot be parsed ----------------------------------------------------------------------------

CHUNKED = b"POST /api/v1/client/config HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\n" + (
    b"Transfer-Encoding: chunked\r\n\r\n"
)
UNPARSABLE = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "zeros": b"\x00" * 100,
    "no-version": b"GET /healthz\r\n\r\n",
    "version": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "method": b"GOT /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "path": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "connect": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "space-in-name": b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
    "folded": b"GET /healthz HTTP/1.1\r\n Folded: x\r\n\r\n",
    "no-colon": b"GET /healthz HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    "length": b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "lengths": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "both": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk-size": CHUNKED + b"zz\r\n",
    "chunk-end": CHUNKED + b"2\r\n{}garbage",
    "chunk-huge": CHUNKED + b"ffffffffffffffffffff\r\n",
}


@pytest.mark.parametrize("name", UNPARSABLE)
def test_what_cannot_be_parsed_is_answered_as_any_error(
    raw: RawClient, server: EmbeddedServer, name: str
) -> None:
    answer = raw.ask(UNPARSABLE[name].replace(b"%b", server.api_key.encode()))
    check_typed(answer, 400, "malformed-request")
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()


@pytest.mark.parametrize(
    "coding",
    [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: GZIP ,\tchunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_body_in_another_transfer_coding_is_refused(
    raw: RawClient, server: EmbeddedServer, coding: str
) -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    answer = raw.ask(request("POST", CONFIG, coding, key=server.api_key) + chunked)
    check_typed(answer, 501, "unknown-transfer-coding")
    assert "chunked" in answer.json()["hint"]
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()


@pytest.mark.parametrize("name", ["chunked", "Chunked"])
def test_a_chunked_body_is_read(raw: RawClient, server: EmbeddedServer, name: str) -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    head = request("POST", CONFIG, f"Transfer-Encoding: {name}", key=server.api_key)
    assert raw.ask(head + chunked).status == 200


def test_nonsense_after_a_request_does_not_take_its_answer(
    raw: RawClient, server: EmbeddedServer
) -> None:
    raw.send(request("POST", CONFIG, key=server.api_key, body=BODY) + b"nonsense\r\n\r\n")
    assert raw.read().status == 200
    assert raw.is_closed()


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_a_request_to_upgrade_is_answered_and_ends_its_connection(
    raw: RawClient, protocol: str
) -> None:
    upgrade = (f"Upgrade: {protocol}", "Connection: Upgrade")
    answer = raw.ask(request("GET", "/healthz", *upgrade))
    assert answer.status == 200
    assert answer.headers["connection"] == "close", "nothing after it can be parsed"
    assert raw.is_closed()


def test_an_endless_head_is_refused_with_its_limit(raw: RawClient) -> None:
    raw.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000)
    check_typed(raw.read(), 431, "head-too-large")
    assert raw.is_closed()


# Ranges of downloads ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def link(server: EmbeddedServer) -> str:
    """Path and query of a signed link to one file of an export."""
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        http = Http(client, server.api_key)
        model = http.model()
        saved = http.post("save_weights_external", {"model_id": model, "path": "out", "seq_id": 1})
        path = http.result(saved["request_id"])["path"].removeprefix("tinker://")
        run, kind, name = path.split("/")
        urls = http.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")
        where = urlsplit(str(sorted(urls["urls"].values())[0]))
        return f"{where.path}?{where.query}"


def test_a_range_and_the_head_of_a_download(raw: RawClient, link: str) -> None:
    whole = raw.ask(request("GET", link))
    assert whole.status == 200
    head = raw.ask(request("HEAD", link))
    assert plain(head.headers) == plain(whole.headers)
    part = raw.ask(request("GET", link, "Range: bytes=1-2"))
    assert part.status == 206
    assert part.body == whole.body[1:3]


@pytest.mark.parametrize("given", ["nonsense", "bytes=", "bytes=b-a", "bytes=3-1", "lines=1-2"])
def test_a_malformed_range_is_answered_as_any_error(raw: RawClient, link: str, given: str) -> None:
    answer = raw.ask(request("GET", link, f"Range: {given}"))
    check_typed(answer, 400, "bad-range")
    assert repr(given) in answer.json()["detail"]
    assert raw.ask(request("GET", "/healthz")).status == 200


def test_a_range_beyond_the_end_is_416_with_the_size(raw: RawClient, link: str) -> None:
    size = len(raw.ask(request("GET", link)).body)
    answer = raw.ask(request("GET", link, f"Range: bytes={size}-"))
    check_typed(answer, 416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{size}"
    head = raw.ask(request("HEAD", link, f"Range: bytes={size}-"))
    assert head.status == 416
    assert raw.ask(request("GET", "/healthz")).status == 200
