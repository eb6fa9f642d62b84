"""Real Ray nodes on loopback addresses of this machine, started and killed one by one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until

__all__ = ["HEAD", "Cluster", "Node", "running_cluster"]

_RAY = Path(sys.executable).with_name("ray")
HEAD = "127.0.0.2"
_WORKER = "tinkex.engine.remote.main"


class Node:
    """One `ray start --block`, with all that Ray starts under it."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._top = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        self._log = log
        self._seen: dict[int, psutil.Process] = {}

    def wait_up(self) -> None:
        """Returns when Ray says that the node runs."""
        wait_until(lambda: "Ray runtime started" in self._log.read_text() or not self._runs())
        assert self._runs(), self._log.read_text()[-2000:]

    def processes(self) -> list[psutil.Process]:
        """All that runs on the node now, children of a process after it."""
        if self._runs():
            top = psutil.Process(self._top.pid)
            self._seen |= {each.pid: each for each in (top, *top.children(recursive=True))}
        return [each for each in self._seen.values() if _is_alive(each)]

    def workers(self) -> list[psutil.Process]:
        """The processes of `tinkex worker`."""
        return [each for each in self.processes() if _WORKER in _command(each)]

    def kill_one(self, program: str) -> None:
        """Ends one of Ray's own processes, `raylet` or `gcs_server`, as kill -9 does."""
        found = [each for each in self.processes() if _command(each)[:1] and program in each.name()]
        assert found, f"no {program} runs on this node"
        found[0].kill()

    def kill(self) -> None:
        """Ends everything at once, as the loss of the machine does."""
        while found := self.processes():
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._reap()

    def _runs(self) -> bool:
        return self._top.poll() is None

    def _reap(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._top.wait(0.5)


class Cluster:
    """A head without CPUs, on which no worker fits, and nodes that are added to it.

    All have addresses of 127.0.0.0/8 but the first, which Ray takes for the machine's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.address = f"{HEAD}:{self._port}"
        # The paths of sockets must be short.
        self._session = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # 60 by default
            # Workers of a test must not take each other's disk cache for their own.
            "TINKEX_DATA_DIR": str(folder / "nodes"),
        }
        self.head: Node | None = None
        self.nodes: list[Node] = []

    def start_head(self) -> None:
        """Starts the head, or another one at the same address."""
        command = ["--head", f"--port={self._port}", "--num-cpus=0", f"--temp-dir={self._session}"]
        self.head = self._start(HEAD, [*command, "--include-dashboard=false"])

    def add(self, *, num_cpus: int = 2, zone: str = "a") -> Node:
        """Starts one more node, with the label `zone`."""
        host = f"127.0.0.{len(self.nodes) + 3}"
        command = [f"--address={self.address}", f"--num-cpus={num_cpus}", f"--labels=zone={zone}"]
        node = self._start(host, command)
        self.nodes.append(node)
        return node

    def workers(self) -> list[psutil.Process]:
        """The processes of `tinkex worker` on all nodes."""
        return [worker for node in self.nodes for worker in node.workers()]

    def node_of(self, process: psutil.Process) -> Node:
        """The node on which a process runs."""
        pid = process.pid
        return next(node for node in self.nodes if pid in {each.pid for each in node.processes()})

    def close(self) -> None:
        """Ends all that was started here."""
        for node in self.nodes if self.head is None else [*self.nodes, self.head]:
            node.kill()
        shutil.rmtree(self._session, ignore_errors=True)

    def _start(self, host: str, options: list[str]) -> Node:
        command = [str(_RAY), "start", "--block", f"--node-ip-address={host}", *options]
        command += ["--object-store-memory=80000000", "--disable-usage-stats"]
        node = Node(command, self._environment, self._folder / f"ray-{host}-{free_port()}.log")
        node.wait_up()
        return node


@contextlib.contextmanager
def running_cluster(folder: Path, num_nodes: int) -> Iterator[Cluster]:
    """A head and nodes with two CPUs each."""
    cluster = Cluster(folder)
    try:
        cluster.start_head()
        for _ in range(num_nodes):
            cluster.add()
        yield cluster
    finally:
        cluster.close()


def _is_alive(process: psutil.Process) -> bool:
    """Whether it computes: one that has ended and was not waited for does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
