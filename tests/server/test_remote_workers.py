"""A server whose engines dial in: real worker processes, killed, frozen and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyrage
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.server.test_restart import run_disturbed
from tests.support.object_stores import bucket, object_store
from tests.support.soak import amount
from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.signing_secret import ensure_secret_file

__all__ = ["bucket", "object_store"]

pytestmark = pytest.mark.timeout(300)

MODELS = ("--model", f"{MODEL}=", "--model", "org/named=")


def remote_config(data_dir: Path, **changes: Any) -> ServerConfig:
    """No engine of its own; pings that notice a frozen worker soon."""
    return null_config(
        data_dir,
        workers=0,
        listen_workers=f"127.0.0.1:{free_port()}",
        max_remote_workers=3,
        engine_ping_s=0.5,
        engine_hang_s=3.0,
        scheduler=SchedulerConfig(hole_grace_s=30.0, snapshot_after_operations=5),
        **changes,
    )


@contextmanager
def worker(
    config: ServerConfig, folder: Path, name: str, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`tinkex worker` with the null engine and a disk of its own."""
    assert config.listen_workers is not None
    command = [sys.executable, "-m", "tinkex", "worker", "--join", config.listen_workers]
    command += ["--token-file", str(config.data_dir / "worker-token"), "--device", "null"]
    command += ["--name", name, "--data-dir", str(folder / name), *MODELS, *more]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def start_server(
    server: EmbeddedServer, config: ServerConfig, folder: Path, stack: ExitStack, *names: str
) -> list[subprocess.Popen[bytes]]:
    """Starts workers as soon as there is a token, and returns when the server can take work."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    ensure_secret_file(config.data_dir / "worker-token")
    started = [stack.enter_context(worker(config, folder, name)) for name in names]
    server.start()
    return started


def expected(tmp_path: Path) -> dict[str, Any]:
    with EmbeddedServer(null_config(tmp_path / "quiet")) as server:
        return run_disturbed(server, lambda: None, at=-1)


@pytest.mark.soak
@pytest.mark.parametrize("disturbance", ["kill", "server", "freeze"][: amount(2, 3)])
def test_a_run_does_not_notice_what_happens_to_its_workers(
    tmp_path: Path, bucket: str, disturbance: str
) -> None:
    config = remote_config(tmp_path / "data", depot=bucket)
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        workers = start_server(server, config, tmp_path, stack, "one", "two")
        acts: dict[str, Callable[[], None]] = {
            "kill": workers[0].kill,
            "freeze": lambda: workers[0].send_signal(signal.SIGSTOP),
            "server": lambda: (server.kill(), server.start())[1],
        }
        assert run_disturbed(server, acts[disturbance], at=6) == expected(tmp_path)


def test_workers_on_a_folder_that_both_see(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        workers = start_server(server, config, tmp_path, stack, "one")

        def replace() -> None:
            workers[0].kill()
            stack.enter_context(worker(config, tmp_path, "two"))

        assert run_disturbed(server, replace, at=6) == expected(tmp_path)


def test_a_batch_of_a_worker_that_never_comes_back_goes_to_another(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        first = start_server(server, config, tmp_path, stack, "one")[0]

        def replace() -> None:
            first.send_signal(signal.SIGSTOP)  # the next batch is on it when the server hangs up
            wait_until(lambda: "go back to the queue" in server.log())
            first.kill()
            stack.enter_context(worker(config, tmp_path, "two"))

        assert run_disturbed(server, replace, at=6) == expected(tmp_path)


def test_healthz_lists_workers_that_have_joined(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        start_server(server, config, tmp_path, stack, "one", "two")

        def joined() -> int:
            health = httpx.get(f"{server.base_url}/api/v1/healthz").json()
            return len(health["engine"].get("workers", []))

        wait_until(lambda: joined() == 2)


def test_an_encrypted_export_of_a_remote_worker(tmp_path: Path, bucket: str) -> None:
    identity = pyrage.x25519.Identity.generate()
    config = remote_config(tmp_path / "data", depot=bucket)
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        start_server(server, config, tmp_path, stack, "one")
        client = stack.enter_context(httpx.Client(base_url=server.base_url, timeout=60))
        http = Http(client, server.api_key)
        model = http.model()
        saving = {
            "model_id": model,
            "seq_id": 1,
            "path": "export",
            "age_encryption_recipients": [str(identity.to_public())],
        }
        path = http.result(http.post("save_weights_external", saving)["request_id"])["path"]
        run, kind, name = path.removeprefix("tinker://").split("/")
        where = f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls"
        urls = http.get(where)["urls"]
        assert urls
        for name, url in urls.items():
            assert name.endswith(".age")
            assert pyrage.decrypt(httpx.get(url).content, [identity])


def test_a_worker_without_the_right_token_or_models_ends_with_a_sentence(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        start_server(server, config, tmp_path, stack, "one")
        wrong = tmp_path / "wrong-token"
        wrong.write_text(os.urandom(32).hex())
        with worker(config, tmp_path, "stranger", "--token-file", str(wrong)) as stranger:
            assert stranger.wait(60) == 2
        assert "The token is not the one" in (tmp_path / "stranger.log").read_text()
