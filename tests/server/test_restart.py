"""Acknowledged means kept: across kill -9 of the server or its engine, and across a clean stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.children import ROOT, start_module
from tests.server.driving import MODEL, Http, null_config
from tinkex.errors import ServerError
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer

STEPS = 10


def run_disturbed(
    server: EmbeddedServer, disturb: Callable[[], None], *, at: int, model: str = MODEL
) -> dict[str, Any]:
    """What a run of the official client saw, disturbed once after step `at` (never if < 0)."""
    run = start_module(
        "tests.server.official_run", server.base_url, server.api_key, str(STEPS), model
    )
    assert run.stdout is not None
    last = ""
    for line in run.stdout:
        last = line
        if line.strip() == f"step {at}":
            disturb()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, f"the client saw an exception:\n{errors[-3000:]}"
    seen: dict[str, Any] = json.loads(last)
    del seen["path"]
    return seen


def engine_pid(server: EmbeddedServer) -> int:
    """The process id of the server's engine."""
    found = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True)
    return int(found.stdout.split()[0])


def test_kill_9_in_the_middle_changes_nothing_for_the_client(tmp_path: Path) -> None:
    quiet = null_config(tmp_path / "quiet")
    with EmbeddedServer(quiet) as server:
        expected = run_disturbed(server, lambda: None, at=-1)
    scheduler = SchedulerConfig(hole_grace_s=30.0, snapshot_after_operations=5)
    with EmbeddedServer(null_config(tmp_path / "killed", scheduler=scheduler)) as server:

        def kill_and_restart() -> None:
            server.kill()
            server.start()

        seen = run_disturbed(server, kill_and_restart, at=4)
    assert seen == expected
    assert seen["is_early_unchanged"]


def test_the_death_of_the_engine_changes_nothing_for_the_client(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server:
        expected = run_disturbed(server, lambda: None, at=-1)

        def kill_engine() -> None:
            os.kill(engine_pid(server), signal.SIGKILL)

        seen = run_disturbed(server, kill_engine, at=4)
    assert seen == expected


def test_a_clean_stop_and_start_finds_everything_again(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server, httpx.Client(timeout=30) as client:
        client.base_url = httpx.URL(server.base_url)
        http = Http(client, server.api_key)
        model = http.model()
        done = http.step(model, 1)["request_id"]
        before = http.result(done)
        waiting = http.train(model, 3).json()["request_id"]
        assert server.stop() == 0
        server.start()
        assert http.result(done) == before
        first = http.train(model, 2).json()["request_id"]
        assert http.result(first)["metrics"]
        assert http.result(waiting)["metrics"]
        assert [run["training_run_id"] for run in http.get("training_runs")["training_runs"]] == [
            model
        ]


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)):
        second = EmbeddedServer(null_config(tmp_path))
        with pytest.raises(ServerError, match="Another server uses the data folder"):
            second.start()
        second.close()


def test_kill_9_while_hundreds_of_promises_are_open(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server, httpx.Client(timeout=30) as client:
        client.base_url = httpx.URL(server.base_url)
        http = Http(client, server.api_key)
        session = http.session()
        models = [http.model(session, number) for number in range(4)]
        promises = {}
        for seq_id in range(1, 41):
            for model in models:
                answer = http.train(model, seq_id) if seq_id % 2 else None
                promise = answer.json() if answer else http.step(model, seq_id)
                promises[model, seq_id] = promise["request_id"]
        server.kill()
        server.start()
        for (model, seq_id), request_id in promises.items():
            assert "error" not in http.result(request_id), (model, seq_id)
        final = [http.result(http.step(model, 41)["request_id"])["metrics"] for model in models]
        assert final == [{"grad_norm": 0.0, "skipped": 1.0}] * 4, "no gradient was left or doubled"
        steps = {http.get(f"training_runs/{model}")["usage"]["optimizer_steps"] for model in models}
        assert steps == {21}


def test_heartbeats_and_polls_stay_quick_while_the_engine_is_busy(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server, httpx.Client(timeout=30) as client:
        client.base_url = httpx.URL(server.base_url)
        http = Http(client, server.api_key)
        session = http.session()
        model = http.model(session)
        os.kill(engine_pid(server), signal.SIGSTOP)  # an engine in the midst of a long forward
        try:
            began = time.monotonic()
            http.train(model, 1)
            http.step(model, 2)
            for _ in range(20):
                http.post("session_heartbeat", {"session_id": session})
            assert (time.monotonic() - began) / 22 < 0.05
        finally:
            os.kill(engine_pid(server), signal.SIGCONT)
        assert http.result(http.step(model, 3)["request_id"])["metrics"]


def test_expired_checkpoints_go_away(tmp_path: Path) -> None:
    config = null_config(tmp_path)
    limits = msgspec.structs.replace(config.limits, min_ttl_s=1)
    with (
        EmbeddedServer(msgspec.structs.replace(config, limits=limits)) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        http = Http(client, server.api_key)
        model = http.model()
        body = {"model_id": model, "path": "brief", "seq_id": 1, "ttl_seconds": 1}
        http.result(http.post("save_weights", body)["request_id"])
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
        deadline = time.monotonic() + 15
        while list((tmp_path / "checkpoints").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert http.get(f"training_runs/{model}/checkpoints")["checkpoints"] == []


def test_sigterm_during_a_long_batch_gives_it_up_and_loses_nothing(tmp_path: Path) -> None:
    with (
        EmbeddedServer(null_config(tmp_path, drain_s=1.0)) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        http = Http(client, server.api_key)
        model = http.model()
        engine = engine_pid(server)
        os.kill(engine, signal.SIGSTOP)
        promise = http.train(model, 1).json()["request_id"]
        step = http.step(model, 2)["request_id"]
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
        server.start()
        client.base_url = httpx.URL(server.base_url)
        assert http.result(promise)["metrics"]["loss:sum"] > 0
        assert http.result(step)["metrics"]["grad_norm"] > 0


def test_the_same_promises_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    config = null_config(tmp_path, database_url=postgres_url)
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        http = Http(client, server.api_key)
        model = http.model()
        promises = [http.train(model, 1).json()["request_id"], http.step(model, 2)["request_id"]]
        assert http.step(model, 2)["request_id"] == promises[1]
        before = [http.result(each) for each in promises]
        server.kill()
        server.start()
        assert [http.result(each) for each in promises] == before
        assert http.result(http.step(model, 3)["request_id"])["metrics"]["skipped"] == 1.0


def test_an_embedded_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.server.driving import null_config\n"
        "from tinkex.server.embedded import EmbeddedServer\n"
        f"server = EmbeddedServer(null_config(Path({str(tmp_path)!r})))\n"
        "server.start()\n"
        "print(server.base_url, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    url = done.stdout.strip()
    assert url.startswith("http"), done.stderr
    deadline = time.monotonic() + 20
    while True:
        try:
            httpx.get(f"{url}/api/v1/healthz", timeout=1)
        except httpx.TransportError:
            break
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.1)
