"""A server whose workers Ray keeps, on a real cluster of one node; skipped without Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.test_remote_workers import expected, free_port, remote_config
from tests.server.test_restart import run_disturbed
from tests.support.waiting import wait_until
from tinkex.server.embedded import EmbeddedServer

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install ray"
    ),
]
RAY = Path(sys.executable).with_name("ray")
ENVIRONMENT = {
    **os.environ,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture
def ray_address(tmp_path: Path) -> Iterator[str]:
    """A head with four CPUs in a process group of its own, ended with all that it started."""
    port = free_port()
    command = [str(RAY), "start", "--head", "--block", f"--port={port}", "--num-cpus=4"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    command += ["--object-store-memory=80000000"]
    with (tmp_path / "ray.log").open("wb") as log:
        head = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        started = psutil.Process(head.pid).children(recursive=True)
        head.send_signal(signal.SIGTERM)
        head.wait(30)
        for process in started:
            if process.is_running():
                process.kill()


def workers_of(config_dir: Path) -> list[psutil.Process]:
    """The processes of workers that have this data folder's server."""
    name = "tinkex.engine.remote.main"
    return [
        each
        for each in psutil.process_iter(["cmdline", "environ"])
        if name in (each.info["cmdline"] or [])
        and (each.info["environ"] or {}).get("TINKEX_TEST_FOLDER") == str(config_dir)
    ]


@pytest.mark.parametrize("victim", ["worker", "actor", "launcher"])
def test_a_run_does_not_notice_what_is_killed(
    tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TINKEX_TEST_FOLDER", str(tmp_path))
    address = request.getfixturevalue("ray_address")
    config = remote_config(
        tmp_path / "data", ray=address, trainers=1, samplers="1:2", depot=str(tmp_path / "depot")
    )

    def kill() -> None:
        if victim == "launcher":
            children = psutil.Process(server.pid).children()
            found = [each for each in children if "tinkex.launch.launcher" in each.cmdline()]
            found[0].kill()
            return
        worker = workers_of(tmp_path)[0]
        target = worker if victim == "worker" else psutil.Process(worker.ppid())
        target.kill()
        if victim == "actor":
            wait_until(lambda: not worker.is_running())

    server = EmbeddedServer(config)
    with server:
        url = f"{server.base_url}/api/v1/healthz"
        wait_until(lambda: len(httpx.get(url).json()["engine"].get("workers", [])) == 2, 120)
        assert run_disturbed(server, kill, at=6) == expected(tmp_path)
        modules = Path(f"/proc/{server.pid}/maps").read_text()
        assert "/ray/_raylet" not in modules
