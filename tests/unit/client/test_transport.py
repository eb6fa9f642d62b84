"""One request over HTTP: proxies, redirects, error bodies, and keys that stay where they belong."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tests.unit.client.steady import steady
from tinkex import AdamParams, Runtime, ServiceClient
from tinkex.client import pools
from tinkex.client.body import PartsPayload, pieces
from tinkex.client.compression import HEADERS, compressed
from tinkex.client.retry import NO_RETRIES
from tinkex.client.transport import Answer, Call, Transport
from tinkex.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    ErrorRequest,
    GoneError,
    InternalServerError,
    NotFoundError,
)

KEY = "tml-0123456789abcdef-secret"
CALL = Call(method="GET", path="/healthz")


@pytest.fixture
def transport(server: LoopbackServer, runtime: Runtime) -> Transport:
    return Transport(runtime, make_config(server, api_key=KEY))


def ask(transport: Transport, **call: Any) -> Answer:
    call = {"method": "GET", "path": "/healthz", **call}
    return transport.runtime.submit(transport.request(Call(**call), NO_RETRIES)).result(10)


# Proxies.


class Proxy:
    """The smallest HTTP proxy: reads a request with a whole address, and answers it itself."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(65536).decode())
                connection.sendall(self.answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    running = Proxy()
    yield running
    running.close()


def test_requests_go_through_the_proxy_that_is_set(runtime: Runtime, proxy: Proxy) -> None:
    from tinkex import Config

    config = Config(
        base_url="http://server.example", api_key=KEY, proxy=proxy.url, environ={}, files=()
    )
    answer = ask(Transport(runtime, config))
    assert answer.body == b"{}"
    assert proxy.requests[0].startswith("GET http://server.example/api/v1/healthz HTTP/1.1")


def test_a_proxy_that_refuses_is_named(runtime: Runtime, proxy: Proxy) -> None:
    from tinkex import Config

    proxy.answer = b"HTTP/1.1 407 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    through = proxy.url.replace("http://", "http://user:hunter2@")
    config = Config(
        base_url="http://server.example", api_key=KEY, proxy=through, environ={}, files=()
    )
    with pytest.raises(APIStatusError, match="The proxy answered 407") as caught:
        ask(Transport(runtime, config))
    assert "TINKEX_PROXY" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_proxy_gets_its_user_and_password(runtime: Runtime, proxy: Proxy) -> None:
    """In its own header; an error names its address alone."""
    from tinkex import Config

    through = proxy.url.replace("http://", "http://us%40er:pass%2Fw%C3%B6rd@")
    config = Config(
        base_url="http://server.example", api_key=KEY, proxy=through, environ={}, files=()
    )
    assert ask(Transport(runtime, config)).body == b"{}"
    credentials = base64.b64encode("us@er:pass/wörd".encode()).decode()
    assert f"Proxy-Authorization: Basic {credentials}" in proxy.requests[0]
    gone = config.replace(proxy="http://user:hunter2@127.0.0.1:1")
    with pytest.raises(APIConnectionError) as caught:
        ask(Transport(runtime, gone))
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown


def test_without_a_proxy_none_is_used(
    transport: Transport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("http_proxy", proxy.url)
    assert ask(transport).status == 200
    assert proxy.requests == []


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_never_crosses_to_another_origin(
    server: LoopbackServer, transport: Transport, status: int
) -> None:
    transport.credential = "eyJ-token"
    with LoopbackServer() as other:
        server.on("healthz").reply(status, headers={"Location": f"{other.url}/api/v1/healthz"})
        assert ask(transport, headers={"X-Extra": KEY}).status == 200
        (call,) = other.calls("healthz")
    told = " ".join(call.headers.values())
    assert KEY not in told
    assert "eyJ-token" not in told
    assert "x-api-key" not in call.headers


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_post_is_not_repeated_where_the_status_does_not_say_so(
    server: LoopbackServer, transport: Transport, status: int
) -> None:
    server.on("get_info").reply(status, headers={"Location": "/api/v1/get_info"})
    with pytest.raises(APIStatusError):
        ask(transport, method="POST", path="/get_info", body=(b"{}",))
    assert server.count("get_info") == 1


@pytest.mark.parametrize("status", [307, 308])
def test_a_post_is_repeated_whole_where_the_status_says_so(
    server: LoopbackServer, transport: Transport, status: int
) -> None:
    server.on("client_config").reply(status, headers={"Location": "/api/v1/client/config"})
    ask(transport, method="POST", path="/client/config", body=(b"{}",))
    first, second = server.calls("client_config")
    assert first.body == second.body
    assert second.headers["x-api-key"] == KEY


# Errors.


def test_a_key_in_an_error_body_is_not_repeated(
    server: LoopbackServer, transport: Transport
) -> None:
    transport.credential = "eyJ-token-of-ours"
    body = {"detail": f"bad key {KEY} or {transport.credential}"}
    server.on("healthz").reply(401, json_body=body)
    with pytest.raises(AuthenticationError) as caught:
        ask(transport)
    error = caught.value
    for text in (str(error), repr(error), error.body or "", str(pickle.dumps(error))):
        assert KEY not in text
        assert "token-of-ours" not in text


def test_an_error_has_the_request_without_its_secrets(
    server: LoopbackServer, transport: Transport
) -> None:
    server.on("healthz").reply(404, json_body={"detail": "no"})
    with pytest.raises(NotFoundError) as caught:
        ask(transport, params={"limit": "3", "note": KEY})
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.request == error.response.request
    assert error.request.method == "GET"
    assert error.request.url.startswith(f"{server.url}/api/v1/healthz?limit=3&note=")
    assert KEY[4:20] not in error.request.url


def test_an_error_without_an_answer_has_the_request_too(
    server: LoopbackServer, connect: Connect, transport: Transport
) -> None:
    held = server.on("healthz").hold()
    with pytest.raises(APITimeoutError) as caught:
        ask(transport, timeout_s=0.05)
    held.release()
    assert caught.value.request == ErrorRequest("GET", f"{server.url}/api/v1/healthz")
    training = connect().create_lora_training_client("tiny/model")
    server.on("retrieve_future").reply(404, json_body={"detail": "no"}).always()
    error = training.optim_step(AdamParams(learning_rate=1e-4)).outcome(10).error
    assert isinstance(error, NotFoundError)
    assert error.request == ErrorRequest("POST", f"{server.url}/api/v1/retrieve_future")


def test_secret_headers_are_sent_and_not_repeated(server: LoopbackServer, runtime: Runtime) -> None:
    headers = {"CF-Access-Client-Id": "my-client", "CF-Access-Client-Secret": "hunter2-canary"}
    transport = Transport(runtime, make_config(server, default_headers=headers))
    server.on("healthz").reply(403, json_body={"detail": "my-client sent hunter2-canary"})
    with pytest.raises(APIStatusError) as caught:
        ask(transport)
    assert server.requests[-1].headers["cf-access-client-secret"] == "hunter2-canary"
    assert "my-client" in str(caught.value)
    assert b"hunter2" not in pickle.dumps(caught.value)


@pytest.mark.parametrize("before", range(1900, 2030, 7))
def test_no_part_of_a_key_is_left_at_the_edge_of_a_long_body(
    transport: Transport, before: int
) -> None:
    body = b"x" * before + KEY.encode() + b"y" * 100
    error = transport.status_error(Answer(status=500, headers={}, body=body), CALL)
    assert "tml-0" not in str(error)
    assert "tml-" not in (error.body or "")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><body>502 Bad Gateway</body></html>", "an HTML page"),
        (b"  <!doctype html>", "an HTML page"),
        (b"", "nothing more"),
        (b"upstream  away\n\n", "upstream away"),
        (b'"text"', '"text"'),
        (b"[1, 2]", "[1, 2]"),
        (b'{"detail": "because"}', "because"),
        (b'{"message": "because"}', "because"),
        (b'{"error": "because"}', "because"),
        (b'{"detail": [{"loc": ["a"]}]}', "loc"),
        (b'{"detail": ""}', "detail"),
        (b"\xff\xfe not utf-8", "not utf-8"),
    ],
)
def test_an_error_has_a_message_for_any_body(transport: Transport, body: bytes, words: str) -> None:
    error = transport.status_error(Answer(status=502, headers={}, body=body), CALL)
    assert isinstance(error, InternalServerError)
    assert words in str(error)


def test_a_typed_body_fills_the_error(transport: Transport) -> None:
    body = b'{"detail": "d", "code": "c", "hint": "h", "request_id": "r"}'
    error = transport.status_error(
        Answer(status=404, headers={"retry-after": "3"}, body=body), CALL
    )
    assert isinstance(error, NotFoundError)
    assert (error.code, error.hint, error.request_id) == ("c", "h", "r")
    assert error.retry_after_s == 3.0
    plain = transport.status_error(
        Answer(status=410, headers={}, body=b'{"code": 7, "hint": ""}'), CALL
    )
    assert isinstance(plain, GoneError)
    assert plain.code != "7"


def test_training_does_not_wait_longer_than_a_minute_at_the_servers_word(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    """The error says how long the server asked for, also where it is waited for."""
    training = connect().create_lora_training_client("tiny/model")
    server.on("optim_step").reply(429, headers={"retry-after": "299"})
    training.optim_step(AdamParams(learning_rate=1e-4)).result(20)
    assert server.count("optim_step") == 2
    assert 299.0 not in clock.sleeps


def test_silence_is_a_timeout_that_names_the_call(
    server: LoopbackServer, transport: Transport
) -> None:
    held = server.on("healthz").hold()
    with pytest.raises(APITimeoutError, match="GET /healthz"):
        ask(transport, timeout_s=0.05)
    held.release()


def test_a_closed_port_is_reported_without_the_key(runtime: Runtime) -> None:
    from tinkex import Config

    config = Config(base_url="http://127.0.0.1:9", api_key=KEY, environ={}, files=())
    with pytest.raises(APIConnectionError) as caught:
        ask(Transport(runtime, config))
    assert "127.0.0.1:9" in str(caught.value)
    assert KEY not in str(caught.value)


def test_headers_name_the_client_and_the_attempt(server: LoopbackServer, runtime: Runtime) -> None:
    config = make_config(server, api_key=KEY, default_headers={"X-Team": "blue"})
    transport = Transport(runtime, config)
    server.on("get_info").reply(503).times(2)
    server.on("get_info").reply(json_body={})
    call = Call(method="POST", path="/get_info", body=(b"{", b"}"), params={"a": "b c"})
    runtime.submit(transport.request(call)).result(10)
    calls = server.calls("get_info")
    assert [request.headers.get("x-stainless-retry-count") for request in calls] == [None, "1", "2"]
    assert len({request.headers["x-idempotency-key"] for request in calls}) == 1
    assert {request.headers["x-team"] for request in calls} == {"blue"}
    assert {request.headers["content-type"] for request in calls} == {"application/json"}
    assert calls[0].body == b"{}"
    assert calls[0].query == {"a": "b c"}


def test_tokens_stand_in_for_the_key_and_are_renewed(
    server: LoopbackServer, runtime: Runtime, clock: FakeClock
) -> None:
    """The exchange itself goes on with the key; a failed renewal keeps the old token."""
    server.service.flags["pjwt_auth_enabled"] = True
    server.on("auth_token").reply(json_body={"jwt": "eyJ.first.x"})
    service = ServiceClient(config=make_config(server, api_key=KEY), runtime=runtime)
    service.get_server_capabilities()
    assert server.calls("auth_token")[0].headers["x-api-key"] == KEY
    assert server.calls("get_server_capabilities")[0].headers["x-api-key"] == "eyJ.first.x"
    server.on("auth_token").reply(403)
    clock.wait_for_sleepers(2)
    clock.advance(3300)
    server.wait_for("auth_token", 2)
    service.get_server_capabilities()
    assert server.calls("get_server_capabilities")[1].headers["x-api-key"] == "eyJ.first.x"
    assert server.calls("auth_token")[1].headers["x-api-key"] == KEY
    server.on("auth_token").reply(json_body={"jwt": "eyJ.second.x"})
    clock.wait_for_sleepers(2)
    clock.advance(3300)
    server.wait_for("auth_token", 3)
    clock.wait_for_sleepers(2)
    service.get_server_capabilities()
    assert server.calls("get_server_capabilities")[2].headers["x-api-key"] == "eyJ.second.x"


# Pools and compression.


@pytest.mark.parametrize(
    ("allowed", "expected"), [(10_000, 2000), (1024, 424), (100, 16), (-1, 2000)]
)
def test_pools_stay_within_what_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, allowed: int, expected: int
) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert pools._connection_limit("sample_poll") == expected


def test_where_the_system_has_no_limits_the_purpose_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "resource", None)
    assert pools._connection_limit("poll") == 256


def test_abandoned_pools_close_nothing(server: LoopbackServer) -> None:
    """In the child of a fork a collected pool must not touch the connections it was left."""

    async def run() -> None:
        found = pools.Pools()
        session = found.get("rest")
        async with session.get(f"{server.url}/api/v1/healthz") as answer:
            await answer.read()
        connector = session.connector
        assert connector is not None
        found.abandon()
        assert session.closed
        assert server.open_connections == 1
        connector._closed = False
        await session.close()

    asyncio.run(run())


def test_bodies_are_compressed_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    body, headers = compressed((b"a" * 500, b"b" * 500))
    assert headers == HEADERS
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(b"".join(body))
    assert whole == b"a" * 500 + b"b" * 500
    monkeypatch.setattr("tinkex.client.compression._compressor", lambda: None)
    assert compressed((b"a",)) == ((b"a",), {})


def test_compressed_batches_are_understood(server: LoopbackServer, connect: Connect) -> None:
    from tests.support.data import CROSS_ENTROPY, loss_of, make_data

    pytest.importorskip("zstandard")
    server.service.flags["proto_compress_fwdbwd"] = True
    training = connect().create_lora_training_client(base_model="tiny/model")
    output = training.forward_backward(make_data([2, 3]), CROSS_ENTROPY).result(10)
    assert output.metrics["loss:sum"] == loss_of([2, 3])
    assert server.calls("forward_backward")[0].headers["content-encoding"] == "zstd"


# Bodies in parts.


@steady
@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(1, 60))
def test_pieces_are_the_same_bytes_within_their_size(parts: list[bytes], size: int) -> None:
    found = list(pieces(parts, size))
    assert b"".join(found) == b"".join(parts)
    longest = max(map(len, parts), default=0)
    assert all(len(piece) <= max(size, longest) for piece in found)


def test_a_body_of_many_megabytes_arrives_whole_and_is_retried_whole(
    server: LoopbackServer, transport: Transport
) -> None:
    parts = [b'"', *(letter.encode() * 300_000 for letter in "abcdefghijkl"), b'"']
    server.on("unknown").reply(503)
    call = Call(method="POST", path="/no_such_call", body=parts, content_type="text/x-json")
    with pytest.raises(NotFoundError):
        transport.runtime.submit(transport.request(call)).result(20)
    bodies = [request.body for request in server.calls("unknown")]
    assert [len(body) for body in bodies] == [3_600_002] * 2
    assert bodies[0] == bodies[1] == b"".join(parts)
    kinds = {request.headers["content-type"] for request in server.calls("unknown")}
    assert kinds == {"text/x-json"}
    assert PartsPayload([b"a", b"b"], "text/plain").decode() == "ab"
