"""An engine that hangs is replaced, and no client sees it; `/healthz` says what goes on."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.driving import Http, null_config
from tests.server.test_restart import engine_pid, run_disturbed
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import Engine
from tinkex.engine.null import NullEngine
from tinkex.errors import ConfigError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.models.engine_factory import engine_factories
from tinkex.server.process import ServerProcess

PINGS = {"engine_ping_s": 0.2, "engine_hang_s": 2.0}
WAIT_S = 45


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("hangs"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        **PINGS,  # type: ignore[arg-type]
    )
    with EmbeddedServer(config) as server:
        yield server


def health(server: EmbeddedServer) -> tuple[int, str]:
    """What `/healthz` answers: its status, and the state of the engine."""
    answer = httpx.get(f"{server.base_url}/healthz", timeout=30)
    body = answer.json()
    assert body["engine"]["since_s"] >= 0
    if answer.status_code == 200:
        assert body["status"] == "ok"
    return answer.status_code, body["engine"]["state"]


@contextmanager
def watched(server: EmbeddedServer) -> Iterator[list[tuple[int, str]]]:
    """What `/healthz` answered meanwhile, without repetitions."""
    seen: list[tuple[int, str]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            if (now := health(server)) not in seen[-1:]:
                seen.append(now)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def await_health(server: EmbeddedServer, state: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while health(server)[1] != state:
        assert time.monotonic() < deadline, f"the engine was never {state}"
        time.sleep(0.05)


def test_an_engine_that_hangs_in_training_changes_nothing(tiny_server: EmbeddedServer) -> None:
    expected = run_disturbed(tiny_server, lambda: None, at=-1, model="tiny")
    before = engine_pid(tiny_server)
    with watched(tiny_server) as seen:
        disturbed = run_disturbed(
            tiny_server, lambda: os.kill(before, signal.SIGSTOP), at=4, model="tiny"
        )
        await_health(tiny_server, "ready")
    assert disturbed == expected
    assert engine_pid(tiny_server) != before
    assert [state for _, state in seen] == ["ready", "not_responding", "restarting", "ready"]
    assert {status for status, _ in seen} == {200}, "work is accepted all the time"


def sampled(http: Http, sampler: str, first_seq: int) -> list[str]:
    promises = []
    for number in range(8):
        body = {
            "sampling_session_id": sampler,
            "seq_id": first_seq + number,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3 + number, 5, 9]}]},
            "sampling_params": {"max_tokens": 400, "seed": number, "stop": []},
        }
        promises.append(http.post("asample", body)["request_id"])
    return promises


def test_an_engine_that_hangs_in_sampling_changes_nothing(tiny_server: EmbeddedServer) -> None:
    with httpx.Client(base_url=tiny_server.base_url, timeout=60) as client:
        http = Http(client, tiny_server.api_key)
        session = http.session()
        request = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        sampler = http.post("create_sampling_session", request)["sampling_session_id"]
        expected = [http.result(each) for each in sampled(http, sampler, 0)]
        before = engine_pid(tiny_server)
        promises = sampled(http, sampler, 100)
        os.kill(before, signal.SIGSTOP)
        seen = [http.result(each) for each in promises]
    assert engine_pid(tiny_server) != before, "it was not in the midst of them"
    for one, other in zip(seen, expected, strict=True):
        assert_same_sample(one, other)


def assert_same_sample(one: dict[str, Any], other: dict[str, Any]) -> None:
    (first,), (second,) = one["sequences"], other["sequences"]
    assert first["tokens"] == second["tokens"]
    np.testing.assert_allclose(first["logprobs"], second["logprobs"], atol=1e-5)


def test_an_idle_engine_that_hangs_is_replaced_before_it_is_needed(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path, **PINGS)) as server:
        before = engine_pid(server)
        os.kill(before, signal.SIGSTOP)
        await_health(server, "not_responding")
        gone = time.monotonic() + WAIT_S
        while Path(f"/proc/{before}").exists():
            assert time.monotonic() < gone, "the engine that hangs was not ended"
            time.sleep(0.05)
        await_health(server, "ready")
        assert engine_pid(server) != before


def test_a_server_that_was_stopped_with_its_engine_keeps_it(tmp_path: Path) -> None:
    """As after a suspend, or Ctrl-Z and fg: the engine gets a fresh interval to answer."""
    with (
        EmbeddedServer(null_config(tmp_path, **PINGS)) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        http = Http(client, server.api_key)
        model = http.model()
        engine = engine_pid(server)
        os.kill(engine, signal.SIGSTOP)
        await_health(server, "not_responding")  # the last ping before the pause has no answer
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(1.5 * PINGS["engine_hang_s"])
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(0.5 * PINGS["engine_hang_s"])
        os.kill(engine, signal.SIGCONT)
        assert http.result(http.step(model, 1)["request_id"])["metrics"]
        assert engine_pid(server) == engine


def test_healthz_shows_that_the_engine_starts(tmp_path: Path) -> None:
    may_start = threading.Event()

    def start() -> Engine:
        assert may_start.wait(WAIT_S)
        return NullEngine(("null",))

    with in_process(ServerProcess(null_config(tmp_path), start)) as url:
        answer = httpx.get(f"{url}/healthz")
        assert answer.status_code == 503
        assert float(answer.headers["retry-after"]) > 0
        body = answer.json()
        assert (body["code"], body["engine"]["state"]) == ("not-ready", "starting")
        assert httpx.get(f"{url}/api/v1/version").status_code == 200, "for probes of the process"
        may_start.set()
        deadline = time.monotonic() + WAIT_S
        while (answer := httpx.get(f"{url}/healthz")).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert answer.json()["engine"]["state"] == "ready"


@contextmanager
def in_process(server: ServerProcess) -> Iterator[str]:
    """The URL of a server that runs in a thread here."""
    urls: queue.SimpleQueue[str] = queue.SimpleQueue()
    thread = threading.Thread(
        target=server.run, kwargs={"on_listening": lambda started: urls.put(started.url)}
    )
    thread.start()
    try:
        yield urls.get(timeout=WAIT_S)
    finally:
        server.stop()
        thread.join()


@pytest.mark.parametrize(("ping_s", "hang_s"), [(0.0, 30.0), (-1.0, 30.0), (5.0, 9.0), (5.0, 0.0)])
def test_pings_that_make_no_sense_are_refused(tmp_path: Path, ping_s: float, hang_s: float) -> None:
    config = null_config(tmp_path, engine_ping_s=ping_s, engine_hang_s=hang_s)
    with pytest.raises(ConfigError, match="must be at least twice engine_ping_s") as caught:
        engine_factories(config)
    assert "--engine-hang-s" in caught.value.hint
