"""No secret of the server's environment is in that of a process it starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.driving import null_config
from tinkex.child_environment import child_environment
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.embedded import EmbeddedServer

SECRETS = {
    "TINKEX_BOOTSTRAP_KEY": "tml-canary-bootstrap",
    "TINKER_API_KEY": "tml-canary-client",
    "HF_TOKEN": "canary-hub",
    "HUGGING_FACE_HUB_TOKEN": "canary-hub-too",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud",
    "PGPASSWORD": "canary-database",
    "SOME_PROXY": "http://user:canary-proxy@127.0.0.1:1",
    "OTHER_DATABASE_URL": "postgresql://host/name?password=canary-url",
}
PLAIN = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MY_URL": "http://a/b:c@d"}
LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz").status_code == 200
    return False


@pytest.fixture(params=["null", "cpu"])
def server_pid(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """`tinkex serve`; on a CPU its engine's process is begun before the server is imported."""
    options = ["--port", "0", "--device", request.param, "--data-dir", str(tmp_path / "data")]
    if request.param == "cpu":
        options += ["--model", f"tiny={make_tiny_model(tmp_path / 'tiny', 'smollm')}"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from tinkex.cli.main import main; main()", "serve", *options],
        env={**os.environ, **SECRETS, **PLAIN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("Listening on ")
        deadline = time.monotonic() + 100
        while not is_ready(url):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        headers = {"X-API-Key": SECRETS["TINKEX_BOOTSTRAP_KEY"]}
        assert httpx.get(f"{url}/api/v1/sessions", headers=headers).status_code == 200
        yield process.pid
    finally:
        process.terminate()
        process.communicate(timeout=60)


@LINUX
def test_the_engine_is_not_given_the_servers_secrets(server_pid: int) -> None:
    assert b"canary-bootstrap" in environment_of(server_pid), "the search would find it"
    children = psutil.Process(server_pid).children(recursive=True)
    assert any("tinkex.engine.process.worker" in each.cmdline() for each in children)
    for child in children:
        seen = environment_of(child.pid)
        assert b"canary" not in seen
        for name, value in PLAIN.items():
            assert f"{name}={value}".encode() in seen


@LINUX
def test_an_embedded_server_is_not_given_the_keys_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with EmbeddedServer(null_config(tmp_path)) as server:
        seen = environment_of(server.pid)
    assert b"tml-canary" not in seen
    assert b"canary-hub" in seen, "it may fetch models from the hub"


def test_what_is_kept_on_purpose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:canary@mirror/simple")
    monkeypatch.setenv("TINKEX_BOOTSTRAP_KEY", "tml-canary")
    assert "PIP_INDEX_URL" not in child_environment()
    kept = child_environment(keep=("PIP_",), PLAIN="yes")
    assert kept["PIP_INDEX_URL"] == "https://user:canary@mirror/simple"
    assert kept["PLAIN"] == "yes"
    assert "TINKEX_BOOTSTRAP_KEY" not in kept
