"""A server whose workers Ray keeps, on three real nodes; one thing or the other is killed.

Skipped without Ray: `make test-ray` runs this folder where it is installed.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from tests.launch.ray_cluster import HEAD, Cluster, running_cluster
from tests.server.test_operator import Operator
from tests.server.test_remote_workers import expected, remote_config
from tests.server.test_restart import run_disturbed
from tests.support.soak import SEED, amount
from tests.support.waiting import wait_until
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer

pytestmark = [
    pytest.mark.timeout(400 * amount(1, 10)),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: make test-ray installs it"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A head and two nodes, with room for four workers."""
    with running_cluster(tmp_path, num_nodes=2) as running:
        yield running


def ray_config(cluster: Cluster, tmp_path: Path, **changes: Any) -> ServerConfig:
    """Two workers, unless changed; they dial the address that the server's node has in Ray."""
    usual = remote_config(tmp_path / "data")
    port = str(usual.listen_workers).rpartition(":")[2]
    config = {"listen_workers": f"{HEAD}:{port}", "max_remote_workers": 8, "ray": cluster.address}
    config |= {"depot": str(tmp_path / "depot"), **changes}
    return msgspec.structs.replace(usual, **config)


def joined(server: EmbeddedServer) -> int:
    """How many workers the server has."""
    health = httpx.get(f"{server.base_url}/api/v1/healthz", timeout=30).json()
    return len(health["engine"].get("workers", []))


def roles_of(operator: Operator) -> list[list[str]]:
    """The roles of each worker, in one order."""
    return sorted(each["roles"] for each in operator.workers().values())


def launchers(server: EmbeddedServer) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children()
    return [each for each in children if "tinkex.launch.launcher" in each.cmdline()]


def trainer(cluster: Cluster) -> psutil.Process:
    return next(each for each in cluster.workers() if '"name":"trainer-0-' in each.cmdline()[-1])


def kill_actor(cluster: Cluster) -> None:
    worker = trainer(cluster)
    psutil.Process(worker.ppid()).kill()
    wait_until(lambda: not worker.is_running())


def acts(cluster: Cluster, server: EmbeddedServer) -> dict[str, Callable[[], None]]:
    """What can be killed, by name."""

    def restart_server() -> None:
        before = launchers(server)
        server.kill()
        server.start()
        psutil.wait_procs(before, timeout=60)
        assert not any(each.is_running() for each in before), "it outlived its server"

    def restart_head() -> None:
        """Nodes leave when they have had no head for a while, and come back as new ones."""
        assert cluster.head is not None
        cluster.head.kill()
        wait_until(lambda: not any(node.processes() for node in cluster.nodes), 120)
        cluster.start_head()
        num_nodes = len(cluster.nodes)
        cluster.nodes.clear()
        for _ in range(num_nodes):
            cluster.add()

    return {
        "worker": lambda: trainer(cluster).kill(),
        "actor": lambda: kill_actor(cluster),
        "launcher": lambda: launchers(server)[0].kill(),
        "raylet": lambda: cluster.node_of(trainer(cluster)).kill_one("raylet"),
        "node": lambda: cluster.node_of(trainer(cluster)).kill(),
        "server": restart_server,
        "head": restart_head,
    }


VICTIMS = ["worker", "actor", "launcher", "raylet", "node", "server", "head"]


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_does_not_notice_what_is_killed(
    tmp_path: Path, cluster: Cluster, victim: str
) -> None:
    walk, undisturbed = random.Random(f"{SEED} {victim}"), expected(tmp_path)
    server = EmbeddedServer(ray_config(cluster, tmp_path))
    with server:
        operator = Operator(server, tmp_path / "data")
        for _ in range(amount(1, 10)):
            wait_until(lambda: joined(server) == 2, 240)
            before = {each.pid for each in cluster.workers()}
            at = walk.randrange(1, 9)
            seen = run_disturbed(server, acts(cluster, server)[victim], at=at)
            assert seen == undisturbed, f"TINKEX_SEED={SEED}, {victim} after step {at}"
            wait_until(lambda: joined(server) == 2, 240)
            if victim in ("launcher", "server"):
                wait_until(lambda: bool(launchers(server)))
                assert {each.pid for each in cluster.workers()} == before, "they were not found"
            if victim in ("raylet", "node"):
                cluster.add()
            # The actors of a killed raylet may outlive the run.
            wait_until(lambda: roles_of(operator) == [["sample"], ["train"]], 240)
        assert "/ray/_raylet" not in Path(f"/proc/{server.pid}/maps").read_text()
        assert "Traceback" not in server.log()
