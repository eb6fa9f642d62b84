"""The server prints the command by which a worker joins it, and that command works as printed."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http
from tests.server.test_serve_log import KEY
from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.upkeep.start_report import start_report

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def test_the_printed_command_joins_a_worker(tmp_path: Path) -> None:
    folder, port = make_tiny_model(tmp_path / "tiny"), free_port()
    line = f"tinkex serve --port {port} --workers 0 --listen-workers 127.0.0.1:{free_port()}"
    server = start(f"{line} --data-dir data --model base=unused", tmp_path, "server")
    worker = None
    log = tmp_path / "server.log"
    try:
        wait_until(lambda: "No worker has joined yet" in log.read_text())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            health = client.get("/healthz")
            assert (health.status_code, health.json()["code"]) == (503, "not-ready")
            assert "no worker has joined yet" in health.json()["detail"]
            http = Http(client, KEY)
            (join,) = re.findall(r"join with: (tinkex worker .+)", log.read_text())
            worker = start(join.replace("FOLDER", shlex.quote(str(folder))), tmp_path, "worker")
            wait_until(lambda: client.get("/healthz").status_code == 200)
            request = {"session_id": http.session(), "model_seq_id": 0, "base_model": "base"}
            promise = http.post("create_model", {**request, "lora_config": {"rank": 4}})
            assert http.result(promise["request_id"])["model_id"]
    finally:
        for process in (server, worker):
            if process is not None:
                process.kill()
                process.wait()


def start(line: str, folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A command as in a shell; its messages are in a file."""
    environ = {**os.environ, "PATH": PATH, "TINKEX_BOOTSTRAP_KEY": KEY}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(shlex.split(line), cwd=folder, env=environ, stdout=log, stderr=log)


@pytest.mark.parametrize(
    ("listens_on", "advertised", "joined"),
    [
        ("0.0.0.0:8001", None, f"{socket.gethostname()}:8001"),
        ("[::]:8001", None, f"{socket.gethostname()}:8001"),
        ("10.0.0.5:8001", None, "10.0.0.5:8001"),
        ("0.0.0.0:8001", "head.example.com:9001", "head.example.com:9001"),
    ],
)
def test_the_printed_address_is_one_that_workers_can_dial(
    tmp_path: Path, listens_on: str, advertised: str | None, joined: str
) -> None:
    config = ServerConfig(
        data_dir=tmp_path,
        models=(ServedModel(name="a", source="x"),),
        workers=0,
        listen_workers=listens_on,
        ray_advertise=advertised,
    )
    report = "\n".join(start_report(config, "http://127.0.0.1:1"))
    assert f"tinkex worker --join {joined} --token-file {tmp_path}/worker-token " in report
    assert "this server computes nothing itself" in report
