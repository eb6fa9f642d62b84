"""Keys and tokens are in requests and nowhere else: not in logs, files, events or answers.

A server that logs everything runs through a whole loop with both tenants' keys, mistakes included;
then everything it wrote or said is searched for them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

import tinkex
from tests.security.surface import REQUESTS
from tests.security.things import Things
from tests.server.driving import MODEL, Http, null_config
from tests.support.keys import new_tenant_key
from tinkex import telemetry, types
from tinkex.server.embedded import EmbeddedServer

SITE = Path(__file__).parent / "watched_python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    """A server that logs everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{SITE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("TINKEX_TEST_LOUD", "1")
        with EmbeddedServer(null_config(folder, poll_hold_s=0.05, verbosity=2)) as running:
            yield running


@pytest.fixture(scope="module")
def other_key(server: EmbeddedServer, folder: Path) -> str:
    key = new_tenant_key(folder)
    return key


def everything(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()


def holds(text: bytes, secret: str) -> bool:
    """Whether a text holds a secret, or a good part of its middle, plain or in hexadecimal."""
    part = secret[10:34].encode()
    return part in text or part.hex().encode() in text.lower()


def walk_every_route(http: Http, owner: Http, said: list[str]) -> None:
    """Calls every route with valid and invalid bodies; `owner` sends the key of the same tenant."""
    things = Things.make(owner)
    ending = ("DELETE", "/auth/apikey/me")
    for route, entry in REQUESTS.items():
        if route == ending:
            continue
        call = entry.make(things)
        for content in (call.body, b'{"broken": ', b'{"session_id": 7, "model_id": []}'):
            answer = http.client.request(
                call.method,
                call.target,
                content=content,
                headers={"X-API-Key": http.api_key, "Content-Type": call.content_type},
            )
            said.append(f"{answer.headers} {answer.text}")


def ask_as_operator(client: httpx.Client, token: str, said: list[str]) -> None:
    """Sends the operator's token where it belongs, and where it does not."""
    for path, headers, status in (
        ("operator/workers", {"X-Operator-Token": token}, 200),
        ("operator/workers", {"X-Operator-Token": f"{token}?"}, 401),
        ("operator/none", {"X-Operator-Token": token}, 404),
        ("sessions", {"X-API-Key": token}, 401),
    ):
        answer = client.get(f"/api/v1/{path}", headers=headers)
        assert answer.status_code == status, answer.text
        said.append(f"{answer.headers} {answer.text}")


def lend_and_err(http: Http, lent_key: str, said: list[str]) -> None:
    """Sends another tenant's key where the protocol has a place for it, and where it has none."""
    model = http.model()
    path = f"tinker://{model}/weights/none"
    ask = {"model_id": model, "path": path, "optimizer": True, "weights_access_token": lent_key}
    promise = http.call("POST", "load_weights", {**ask, "seq_id": 1})
    said.append(promise.text)
    said.append(http.poll(promise.json()["request_id"]).text)
    header = {"X-Tinker-Weights-Access-Token": lent_key}
    for body in ({"tinker_path": path}, {"tinker_path": 7}):
        said.append(http.call("POST", "weights_info", body, **header).text)
    copy = {"source_path": path, "weights_access_token": lent_key}
    said.append(http.call("POST", "copy_weights", copy).text)
    for key in (lent_key[:-1], lent_key + "x", f"Bearer {lent_key}"):
        answer = http.client.get("/api/v1/sessions", headers={"X-API-Key": key})
        assert answer.status_code == 401
        said.append(answer.text)
    address = http.client.base_url.host, http.client.base_url.port
    for target in (f"/api/v1/{lent_key}", f"/api/v1/sessions?api_key={lent_key}"):
        plain = HTTPConnection(*address, timeout=30)  # httpx itself would log the URL
        plain.request("GET", target, headers={"X-API-Key": http.api_key})
        said.append(plain.getresponse().read().decode())
        plain.close()


def use_the_sdk(server: EmbeddedServer, api_key: str, events: list[str]) -> None:
    """A loop of our own client with its events, and its mistakes."""
    telemetry.attach("secrets", "tinkex.*", lambda *about: events.append(repr(about)))
    try:
        with tinkex.ServiceClient(base_url=server.base_url, api_key=api_key) as service:
            training = service.create_lora_training_client(base_model=MODEL, rank=4)
            inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
            datum = types.Datum(types.ModelInput.from_ints([1, 2]), inputs)
            training.forward_backward([datum], "cross_entropy").result()
            training.optim_step(types.AdamParams()).result()
            for wrong in ("no such loss", api_key[:4]):
                with pytest.raises(tinkex.TinkexError) as failure:
                    training.forward_backward([datum], wrong).result()
                events.append(f"{failure.value!r} {failure.value}")
            with pytest.raises(tinkex.TinkexError) as failure:
                service.create_lora_training_client(base_model="none")
            events.append(f"{failure.value!r} {failure.value}")
            events.append(repr([service, training]))
        wrong_key = tinkex.ServiceClient(base_url=server.base_url, api_key=api_key[:-1] + "?")
        with pytest.raises(tinkex.TinkexError) as failure:
            wrong_key.get_server_capabilities()
        events.append(f"{failure.value!r} {failure.value}")
    finally:
        telemetry.detach("secrets")


def test_no_key_is_left_anywhere(
    server: EmbeddedServer, other_key: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    events: list[str] = []
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        first, second = Http(client, server.api_key), Http(client, other_key)
        tokens = [each.post("auth/token")["jwt"] for each in (first, second)]
        walk_every_route(first, first, said)
        walk_every_route(Http(client, tokens[1]), second, said)
        # The answer that holds a new token is the one place for it.
        said = [text for text in said if '"jwt"' not in text]
        lend_and_err(first, other_key, said)
        ask_as_operator(client, (folder / "operator-token").read_text().split()[0], said)
    for key in (server.api_key, other_key):
        use_the_sdk(server, key, events)
    server.kill()
    server.start()
    server.stop()
    places = [
        *everything(folder),
        ("the server's log", server.log().encode()),
        ("the client's log", caplog.text.encode()),
        *((f"an answer: {text[:80]}", text.encode()) for text in said),
        *((f"an event: {text[:80]}", text.encode()) for text in events),
    ]
    assert "DEBUG " in server.log(), "the server does log everything"
    for line in ("GET /api/v1/tml-", "POST /api/v1/auth/token 200", "POST /api/v1/retrieve_future"):
        assert line in server.log(), "every request has its line in the access log"
    assert len(events) > 20
    for secret in (server.api_key, other_key, *tokens):
        found = [name for name, text in places if holds(text, secret)]
        assert not found, f"a secret of {secret[:4]}… is in {found}"
    signing = folder / "signing-secret"
    secret = bytes.fromhex(signing.read_text().split()[0])
    found = [name for name, text in places if secret in text or secret.hex().encode() in text]
    assert found == [str(signing)], "the signing secret is in its own file alone"
    operator = folder / "operator-token"
    token = operator.read_text().split()[0]
    found = [name for name, text in places if holds(text, token) or bytes.fromhex(token) in text]
    assert found == [str(operator)], "the operator token is in its own file alone"


def test_the_search_would_find_them(server: EmbeddedServer, folder: Path) -> None:
    planted = folder / "planted.log"
    for text in (server.api_key, server.api_key.encode().hex(), f"x={server.api_key[6:]}"):
        planted.write_text(text)
        assert any(holds(content, server.api_key) for _, content in everything(folder))
    planted.unlink()
