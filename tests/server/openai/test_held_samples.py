"""Requests that wait for their samples: clients leave, servers stop, sessions end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.store import Database
from tinkex.types.requests import CLONE_STRIDE

OPEN_SESSIONS = "SELECT session_id FROM sessions WHERE finished_at IS NULL"
LONG = {"model": "slow", "prompt": "x", "max_tokens": 60_000, "logit_bias": {"258": -100}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def slow_server(home: Path) -> Iterator[EmbeddedServer]:
    """A server on which a sample can take a minute."""
    folder = make_tiny_model(home / "slow", max_position_embeddings=65_536)
    config = ServerConfig(
        data_dir=home / "data",
        port=0,
        models=(ServedModel(name="slow", source=str(folder)),),
        num_threads=1,
        drain_s=5.0,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def client(slow_server: EmbeddedServer) -> Iterator[openai.OpenAI]:
    url = f"{slow_server.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key=slow_server.api_key, max_retries=0) as opened:
        yield opened


def rows(home: Path, query: str) -> list[Any]:
    """What the server's database has."""
    from sqlalchemy import text

    db = Database(f"sqlite:///{home / 'data' / 'tinkex.db'}")
    try:
        return [tuple(row) for row in db.read(lambda conn: conn.execute(text(query)).all())]
    finally:
        db.close()


def states(home: Path) -> list[str]:
    return [state for (state,) in rows(home, "SELECT state FROM samples ORDER BY created_at")]


def send(server: EmbeddedServer, body: dict[str, Any]) -> socket.socket:
    """A connection with a request on it."""
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    content = msgspec.json.encode(body)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {server.api_key}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_frees_its_seats(
    slow_server: EmbeddedServer, client: openai.OpenAI, home: Path, is_streamed: bool
) -> None:
    before = len(states(home))
    body = {**LONG, "n": 2, "prompt": ["x", "y"], "stream": is_streamed}
    connection = send(slow_server, body)
    if is_streamed:
        assert connection.recv(12) == b"HTTP/1.1 200"
    wait_until(lambda: states(home)[before:] == ["queued", "queued"])
    connection.close()
    wait_until(lambda: states(home)[before:] == ["failed", "failed"])
    answer = client.completions.create(model="slow", prompt="x", max_tokens=2)
    assert answer.choices[0].text is not None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_stopping_server_says_so_and_leaves_nothing_behind(
    slow_server: EmbeddedServer, home: Path, is_streamed: bool
) -> None:
    before = len(states(home))
    with send(slow_server, {**LONG, "stream": is_streamed}) as connection:
        if is_streamed:
            connection.recv(12)
        wait_until(lambda: states(home)[before:] == ["queued"])
        slow_server.stop()
        answer = connection.makefile("rb").read().decode()
    assert '"code":"not_ready"' in answer
    assert "[DONE]" not in answer
    if not is_streamed:
        assert answer.startswith("HTTP/1.1 503")
        assert "retry-after" in answer.lower()
    assert states(home)[before:] == ["failed"]
    slow_server.start()


def test_a_new_start_goes_on_in_the_same_session_with_numbers_of_its_own(
    slow_server: EmbeddedServer, home: Path
) -> None:
    def ask() -> None:
        url = f"{slow_server.base_url}/v1"
        with openai.OpenAI(base_url=url, api_key=slow_server.api_key) as opened:
            opened.completions.create(model="slow", prompt="x", max_tokens=1)

    ask()
    slow_server.kill()
    slow_server.start()
    ask()
    numbers = [seq for (seq,) in rows(home, "SELECT seq_id FROM samples ORDER BY created_at")]
    assert numbers[-1] // CLONE_STRIDE == numbers[-2] // CLONE_STRIDE + 1
    assert len(rows(home, OPEN_SESSIONS)) == 1


def test_a_session_that_was_ended_is_replaced(
    slow_server: EmbeddedServer, client: openai.OpenAI, home: Path
) -> None:
    client.completions.create(model="slow", prompt="x", max_tokens=1)
    ((session_id,),) = rows(home, OPEN_SESSIONS)
    finished = httpx.post(
        f"{slow_server.base_url}/api/v1/sessions/{session_id}/finish",
        json={"reason": {"type": "success"}},
        headers={"X-API-Key": slow_server.api_key},
    )
    assert finished.status_code == 200
    assert client.completions.create(model="slow", prompt="x", max_tokens=1).choices
    ((replaced_by,),) = rows(home, OPEN_SESSIONS)
    assert replaced_by != session_id


def test_an_engine_on_another_machine_has_its_text_elsewhere(tmp_path: Path) -> None:
    config = ServerConfig(
        data_dir=tmp_path,
        port=0,
        device="null",
        models=(ServedModel(name="null", source=""),),
    )
    with EmbeddedServer(config) as server:
        url = f"{server.base_url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key=server.api_key, max_retries=0) as opened,
            pytest.raises(openai.BadRequestError) as refused,
        ):
            opened.completions.create(model="null", prompt="x")
    assert refused.value.code == "no_tokenizer"
    assert refused.value.param == "model"
