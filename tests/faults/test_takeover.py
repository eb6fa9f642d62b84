"""A standby takes over: a run through a killed, a frozen and a stopped leader equals a quiet one.

Both clients train with default settings at one address, which a forwarder gives to the server that
is ready. `make test` has short leases and the engine without numerics; `make soak` has the default
lease, a real engine and more rounds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from tests.server.children import start_module
from tests.server.driving import MODEL, null_config
from tests.support.forwarder import Forwarder
from tests.support.soak import IS_SOAK, amount
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.store.keys import new_key

LEASE_S = 10.0 if IS_SOAK else 4.0


def config_of(folder: Path, url: str | None, model_folder: Path | None) -> ServerConfig:
    """A server whose snapshots are frequent, so that recovery takes both snapshot and log."""
    config = null_config(
        folder,
        database_url=url,
        bootstrap_key=new_key(),
        lease_s=LEASE_S,
        scheduler=SchedulerConfig(hole_grace_s=30.0, snapshot_after_operations=5),
    )
    if model_folder is None:
        return config
    models = (ServedModel(name=MODEL, source=str(model_folder)),)
    return msgspec.structs.replace(config, device="cpu", num_threads=1, models=models)


class Servers:
    """A leader and a standby behind one address, and faults of the leader."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = msgspec.structs.replace(config, is_standby=True)
        self._all: list[EmbeddedServer] = []
        self._frozen: list[EmbeddedServer] = []
        self._ended: list[EmbeddedServer] = []
        self.forwarder = Forwarder([])
        self._start()
        self.leader()
        self._start()

    def leader(self) -> EmbeddedServer:
        """The server that leads, once there is one: mostly, but not always, the eldest."""
        found: list[EmbeddedServer] = []

        def find() -> bool:
            gone = [*self._frozen, *self._ended]
            found[:] = [each for each in self._all if each not in gone and each.is_ready()]
            return bool(found)

        wait_until(find)
        return found[0]

    def strike(self, fault: str) -> None:
        """Has the leader fail. Returns when another server leads and one more stands by."""
        old = self.leader()
        match fault:
            case "kill":
                old.kill()
            case "freeze":
                os.kill(old.pid, signal.SIGSTOP)
            case _:
                assert old.stop() == 0
        (self._frozen if fault == "freeze" else self._ended).append(old)
        self.leader()
        self._start()

    def thaw(self) -> None:
        """Wakes up the leaders that were frozen; each finds that it leads no more, and ends."""
        for server in self._frozen:
            os.kill(server.pid, signal.SIGCONT)
            wait_until(lambda pid=server.pid: not is_running(pid))  # type: ignore[misc]
            assert "Another server has taken over" in server.log()
        self._ended += self._frozen
        self._frozen.clear()

    def close(self) -> None:
        """Ends all servers."""
        for server in self._frozen:
            os.kill(server.pid, signal.SIGCONT)
        for server in reversed(self._all):
            server.close()

    def _start(self) -> None:
        server = EmbeddedServer(self._config)
        self._all.append(server)
        server.start()
        self.forwarder.add(server.base_url)


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def servers_of(config: ServerConfig) -> Iterator[Servers]:
    servers = Servers(config)
    try:
        with servers.forwarder:
            yield servers
    finally:
        servers.close()


def run_of(
    package: str, url: str, key: str, steps: int, at: dict[int, Callable[[], None]]
) -> dict[str, Any]:
    """What a client saw that was disturbed after some of its steps."""
    run = start_module("tests.faults.takeover_run", package, url, key, str(steps), MODEL)
    assert run.stdout is not None
    last = ""
    try:
        for line in run.stdout:
            last = line
            name, _, number = line.strip().partition(" ")
            if name == "step" and int(number) in at:
                at[int(number)]()
        _, errors = run.communicate(timeout=60)
    except BaseException:
        run.kill()
        run.communicate()
        raise
    assert run.returncode == 0, f"the client saw an exception:\n{errors[-3000:]}"
    seen: dict[str, Any] = json.loads(last)
    return seen


@pytest.mark.soak
@pytest.mark.parametrize(
    ("package", "faults"), [("tinker", ["kill", "freeze"]), ("tinkex", ["freeze"])]
)
def test_a_run_through_takeovers_equals_a_quiet_one(
    package: str, faults: list[str], tmp_path: Path, empty_postgres_url: str
) -> None:
    model_folder = make_tiny_model(tmp_path / "model") if IS_SOAK else None
    faults = ["kill", "freeze", "stop"] * 4 if IS_SOAK else faults
    every = amount(6, 20)
    steps = every * (len(faults) + 1)
    quiet = config_of(tmp_path / "quiet", None, model_folder)
    with EmbeddedServer(quiet) as server:
        expected = run_of(package, server.base_url, server.api_key, steps, {})

    disturbed = config_of(tmp_path / "disturbed", empty_postgres_url, model_folder)
    with servers_of(disturbed) as servers:
        strikes: dict[int, Callable[[], None]] = {
            every * place: partial(servers.strike, fault) for place, fault in enumerate(faults, 1)
        }
        strikes[steps - 2] = servers.thaw
        key = str(disturbed.bootstrap_key)
        seen = run_of(package, servers.forwarder.url, key, steps, strikes)
        assert seen == expected
        assert_all_done_once(servers.forwarder.url, key, steps)
        assert_no_folder_is_missing(disturbed)


def assert_all_done_once(url: str, key: str, steps: int) -> None:
    headers = {"X-API-Key": key}
    (run,) = httpx.get(f"{url}/api/v1/training_runs", headers=headers).json()["training_runs"]
    assert run["usage"]["optimizer_steps"] == steps


def assert_no_folder_is_missing(config: ServerConfig) -> None:
    """What rows name is on disk: a zombie has deleted nothing that is in use."""
    with psycopg.connect(str(config.database_url)) as conn:
        named = {
            "checkpoints": conn.execute("SELECT checkpoint_id FROM checkpoints").fetchall(),
            "snapshots": conn.execute(
                "SELECT snapshot_folder FROM models WHERE snapshot_folder IS NOT NULL"
            ).fetchall(),
        }
    assert named["checkpoints"]
    for kind, rows in named.items():
        for (name,) in rows:
            assert (config.data_dir / kind / name).is_dir(), (kind, name)


def test_a_frozen_leader_and_its_engine_leave_the_data_folder_alone(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    config = config_of(tmp_path / "data", empty_postgres_url, None)
    with servers_of(config) as servers:
        key, leader = str(config.bootstrap_key), servers.leader()
        found = subprocess.run(["pgrep", "-P", str(leader.pid)], capture_output=True, text=True)
        engine = int(found.stdout.split()[0])
        run_of("tinkex", servers.forwarder.url, key, 6, {2: partial(servers.strike, "freeze")})
        assert is_running(engine)
        servers.thaw()
        wait_until(lambda: not is_running(engine))
        assert_no_folder_is_missing(config)
        servers.strike("stop")  # a start removes what no row names
        assert_no_folder_is_missing(config)
        with psycopg.connect(empty_postgres_url) as conn:
            rows = conn.execute("SELECT checkpoint_id FROM checkpoints").fetchall()
        names = {path.name for path in (config.data_dir / "checkpoints").iterdir()}
        assert names == {name for (name,) in rows}
