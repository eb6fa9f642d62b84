"""The commands of "From laptop to cluster", typed as they are written, from step to step.

Steps 1 to 5, on addresses of this machine, with the engine that computes nothing. A run that was
saved in the first step goes on in those that keep the database.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.pages import DOCS
from tests.docs.terminal import Terminal
from tests.server.driving import Http
from tests.store.postgres import empty_postgres_url, postgres_url
from tests.support.object_stores import bucket, object_store
from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until
from tinkex import Config, Runtime, ServiceClient, types

__all__ = ["bucket", "empty_postgres_url", "object_store", "postgres_url"]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "curl", "openssl"))), reason="the page's programs"
    ),
]

SECRETS = ("first-key", "worker-token", "operator-token", "signing-secret")


@pytest.fixture(scope="module")
def steps() -> list[list[str]]:
    """The commands of each step, in blocks."""
    text = (DOCS / "how-to" / "cluster.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (?=\d\. )", text, flags=re.M)[1:]
    return [re.findall(r"^```bash\n(.*?)^```", part, re.M | re.S) for part in parts]


class Site:
    """Addresses for the names on the page, and the machines that use them."""

    def __init__(self, tmp_path: Path, places: dict[str, str]) -> None:
        self._tmp_path, self._places = tmp_path, places
        self.machines: list[Terminal] = []
        self.host = "127.0.0.1"
        self.port, self._worker_port = free_port(), free_port()

    def machine(self, name: str) -> Terminal:
        """One more, at the address of `host`."""
        workers = f"{self.host}:{self._worker_port}"
        places = {
            "http://127.0.0.1:8000": self.url,
            "head.example.com:8001": workers,
            "0.0.0.0:8001": workers,
            "--host 0.0.0.0": f"--host {self.host}",
            **self._places,
        }
        folder = self._tmp_path / name
        at = {"TINKEX_PORT": str(self.port), "TINKEX_DATA_DIR": str(folder / "data")}
        made = Terminal(folder, places, TINKEX_DEVICE="null", **at)
        self.machines.append(made)
        return made

    @property
    def url(self) -> str:
        """Where clients find the server at `host`."""
        return f"http://{self.host}:{self.port}"

    def health(self) -> Any:
        """The status and body of the server's answer; 0 while there is none."""
        try:
            answer = httpx.get(f"{self.url}/healthz", timeout=30)
        except httpx.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def await_ready(self) -> None:
        """Returns once the server takes work of every kind."""
        wait_until(lambda: self._is_ready(), 120)

    def _is_ready(self) -> bool:
        status, body = self.health()
        return status == 200 and not body["engine"].get("missing_roles")


@pytest.fixture
def site(tmp_path: Path, bucket: str, object_store: str, empty_postgres_url: str) -> Iterator[Site]:
    places = {
        "/models/qwen3-8b": str(tmp_path / "model"),
        "http://objects.example.com:9000": object_store,
        "=...": "=test",
        "s3://my-bucket/tinkex": bucket,
        "postgresql://tinkex@db.example.com/tinkex": f"'{empty_postgres_url}'",
    }
    made = Site(tmp_path, places)
    with ExitStack() as stack:
        yield made
        for each in made.machines:
            stack.callback(each.kill)


def train(url: str, key: str, path: str | None = None) -> str:
    """Goes on from a checkpoint, or begins, for one step; where it is saved."""
    with Runtime() as runtime:
        config = Config(base_url=url, api_key=key, environ={}, files=())
        service = ServiceClient(config=config, runtime=runtime)
        if path is None:
            training = service.create_lora_training_client(base_model="qwen", rank=4)
        else:
            training = service.create_training_client_from_state(path)
        training.optim_step(types.AdamParams()).result(60)
        return str(training.save_state("kept").result(60).path)


def samples(url: str, key: str) -> int:
    with httpx.Client(base_url=url, timeout=60) as client:
        http = Http(client, key)
        request = {"session_id": http.session(), "sampling_session_seq_id": 0, "base_model": "qwen"}
        sampler = http.post("create_sampling_session", request)["sampling_session_id"]
        body = {"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3]}]}}
        body |= {"sampling_session_id": sampler, "seq_id": 0, "sampling_params": {"max_tokens": 4}}
        return len(http.result(http.post("asample", body)["request_id"])["sequences"])


def test_one_server_grows_over_machines_and_keeps_its_runs(
    site: Site, steps: list[list[str]], tmp_path: Path
) -> None:
    alone, several, depot, machines, *_ = steps
    head = site.machine("head")

    head.type(alone[0])
    site.await_ready()
    wait_until(lambda: "API key of " in head.output())
    (key,) = re.findall(r"API key of .*: (tml-\S+)\n", head.output())
    assert '"status":"ok"' in head.type(alone[1])
    saved = train(site.url, key)
    head.end()

    head.type(several[0])
    site.await_ready()
    wait_until(lambda: "worker-1" in head.type("tinkex workers\n"))
    saved = train(site.url, key, saved)
    head.end()

    head.type(depot[0])
    site.await_ready()
    saved = train(site.url, key, saved)
    head.end()
    shutil.rmtree(tmp_path / "head" / "data" / "checkpoints")  # "may lose its disk"

    serve, join, another, drain = machines
    exports = "".join(line for line in depot[0].splitlines(True) if line.startswith("export "))
    head.type(serve)
    wait_until(lambda: site.health()[0] == 503)
    workers = {name: site.machine(name) for name in ("gpu-1", "gpu-2", "gpu-3")}
    for machine, line in zip(workers.values(), [*join.splitlines(), another], strict=True):
        shutil.copy(tmp_path / "head" / "data" / "worker-token", machine.folder)
        machine.type(exports)
        machine.type(line)
    site.await_ready()
    wait_until(lambda: "gpu-3" in head.type("tinkex workers\n"))
    assert "gpu-2 is drained" in head.type(drain)
    assert train(site.url, key, saved).startswith("tinker://")
    assert samples(site.url, key) == 1


def test_a_standby_takes_over_with_the_same_files(
    site: Site, steps: list[list[str]], tmp_path: Path
) -> None:
    depot, machines, (secrets, serve) = steps[2][0], steps[3], steps[4]
    exports = "".join(line for line in depot.splitlines(True) if line.startswith("export "))
    first = site.machine("first")
    first.type(secrets)
    key = (first.folder / "first-key").read_text().strip()

    def copy_of_secrets(machine: Terminal) -> None:
        for name in SECRETS:
            shutil.copy(first.folder / name, machine.folder)

    def start_workers(names: tuple[str, str]) -> None:
        for name, line in zip(names, machines[1].splitlines(), strict=True):
            machine = site.machine(name)
            copy_of_secrets(machine)
            machine.type(exports)
            machine.type(line)

    first.type(exports + serve)
    wait_until(lambda: site.health()[0] == 503)
    start_workers(("gpu-1", "gpu-2"))
    site.await_ready()
    saved = train(site.url, key)

    site.host = "127.0.0.2"
    second = site.machine("second")
    copy_of_secrets(second)
    second.type(exports + serve)
    wait_until(lambda: site.health()[1].get("status") == "standby")
    first.kill()
    start_workers(("gpu-3", "gpu-4"))
    site.await_ready()
    assert train(site.url, key, saved).startswith("tinker://")
    assert samples(site.url, key) == 1
