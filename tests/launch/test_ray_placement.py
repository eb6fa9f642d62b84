"""Where Ray places workers, how many there are, and which of an earlier start are replaced."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cli.shell import Shell
from tests.launch.ray_cluster import Cluster, running_cluster
from tests.launch.test_ray import joined, launchers, ray_config
from tests.server.driving import MODEL, Http
from tests.server.test_operator import Operator
from tests.server.test_remote_workers import expected, start_server
from tests.server.test_restart import run_disturbed
from tests.support.waiting import wait_until
from tinkex.server.embedded import EmbeddedServer

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: make test-ray installs it"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A head without room, and no other node so far."""
    with running_cluster(tmp_path, num_nodes=0) as running:
        yield running


def samplers(operator: Operator) -> list[dict[str, Any]]:
    return [each for each in operator.workers().values() if each["roles"] == ["sample"]]


def many_samples(http: Http, count: int) -> list[str]:
    """Sends so many requests of one session; their ids."""
    request = {"session_id": http.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = http.post("create_sampling_session", request)["sampling_session_id"]
    bodies = [
        {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3, 5, 9]}]},
            "sampling_params": {"max_tokens": 10, "seed": number, "stop": []},
        }
        for number in range(count)
    ]
    return [accepted(http, each)["request_id"] for each in bodies]


def accepted(http: Http, body: dict[str, Any]) -> Any:
    """The answer to a sample that is sent again as long as a loaded machine has the server refuse
    it."""
    found: list[httpx.Response] = []

    def send() -> bool:
        found[:] = [http.call("POST", "asample", body)]
        return found[0].status_code != 429

    wait_until(send)
    assert found[0].status_code == 200, found[0].text
    return found[0].json()


def test_workers_start_on_nodes_with_the_label_and_with_free_cpus(
    tmp_path: Path, cluster: Cluster
) -> None:
    cluster.add(zone="a")
    first = cluster.add(zone="b")
    config = ray_config(cluster, tmp_path, samplers="2:2", ray_labels=("zone=b",))
    with EmbeddedServer(config) as server:
        wait_until(lambda: joined(server) == 2, 120)
        wait_until(lambda: "No node of the Ray cluster fits the worker" in server.log(), 120)
        assert "needs 1 CPU, 0 GPU, label zone=b" in server.log()
        assert joined(server) == 2
        assert {cluster.node_of(each) for each in cluster.workers()} == {first}
        second = cluster.add(zone="b")
        wait_until(lambda: joined(server) == 3, 120)
        assert {cluster.node_of(each) for each in cluster.workers()} == {first, second}
        environ = {"TINKER_BASE_URL": server.base_url, "TINKEX_DATA_DIR": str(tmp_path / "data")}
        listed = Shell(tmp_path, environ)("workers").stdout
        assert "trainer-0-" in listed
        assert "sampler-1-" in listed


def test_samplers_follow_what_waits_and_are_drained_before_they_go(
    tmp_path: Path, cluster: Cluster
) -> None:
    cluster.add(num_cpus=4)
    config = ray_config(
        cluster,
        tmp_path,
        device="null:3",
        samplers="1:3",
        ray_sampler_tokens=20,
        ray_idle_s=3.0,
    )
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        client.timeout = httpx.Timeout(60)
        wait_until(lambda: joined(server) == 2, 120)
        operator = Operator(server, tmp_path / "data")
        http = Http(client, server.api_key)
        sent = many_samples(http, 300)
        wait_until(lambda: len(samplers(operator)) == 3, 200)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(http.result, sent))
        assert all(each["sequences"] for each in results)
        seen: set[str] = set()

        def is_one_left() -> bool:
            found = samplers(operator)
            seen.update(each["name"] for each in found if each["is_draining"])
            return len(found) == 1

        wait_until(is_one_left, 120)
        assert len(seen) == 2, "each was drained first"
        wait_until(lambda: len(cluster.workers()) == 2)


def test_workers_with_an_old_token_are_replaced_and_no_token_is_on_a_command_line(
    tmp_path: Path, cluster: Cluster
) -> None:
    node = cluster.add()
    server = EmbeddedServer(ray_config(cluster, tmp_path))
    with server:
        wait_until(lambda: joined(server) == 2, 120)
        before = cluster.workers()
        token = (tmp_path / "data" / "worker-token").read_text().split()[0]
        everything = [*node.processes(), *psutil.Process(server.pid).children(recursive=True)]
        for process in everything:
            assert token not in " ".join([*process.cmdline(), *process.environ().values()])
        old_launchers = launchers(server)
        server.stop()
        assert not any(each.is_running() for each in old_launchers), "it outlived its server"
        assert all(each.is_running() for each in before), "they wait for the next start"
        (tmp_path / "data" / "worker-token").write_text(secrets.token_hex(32) + "\n")
        server.start()
        wait_until(lambda: joined(server) == 2, 120)
        wait_until(lambda: not any(each.is_running() for each in before))
        wait_until(lambda: len(cluster.workers()) == 2)


def test_a_server_works_without_ray_and_takes_its_workers_when_it_comes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    config = ray_config(cluster, tmp_path)
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        stack.callback(server.close)
        start_server(server, config, tmp_path, stack, "by-hand")
        wait_until(lambda: "cannot be reached" in server.log())
        assert run_disturbed(server, lambda: None, at=-1) == expected(tmp_path)
        cluster.start_head()
        cluster.add()
        wait_until(lambda: joined(server) == 3, 240)
        assert "Traceback" not in server.log()
