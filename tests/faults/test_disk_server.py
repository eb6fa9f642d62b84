"""A real server on a bad disk: full, read-only, failing to sync. It says so, loses nothing,
stays up, and goes on once the disk is well."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.support.broken_os import ALL_WRITING, SYNC, WRITE, BrokenOs
from tests.support.disks import small_disk
from tests.support.soak import IS_SOAK, SEED, amount
from tinkex.errors import ServerError
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer

OFTEN = SchedulerConfig(hole_grace_s=60.0, snapshot_after_operations=3)


class Client:
    """Trains one model and tries again as clients do: on 503, after the time that it names."""

    def __init__(self, http: Http) -> None:
        self.http = http
        self.refusals: list[httpx.Response] = []
        request = {
            "session_id": http.session(),
            "model_seq_id": 0,
            "base_model": MODEL,
            "lora_config": {"rank": 8, "seed": 1},
        }
        made = self.result(lambda: http.call("POST", "create_model", request))
        self.model = made["model_id"]

    def retried(self, call: Any) -> Any:
        deadline = time.monotonic() + 60
        while True:
            answer = call()
            if answer.status_code not in (503, 408):
                assert answer.status_code == 200, answer.text
                return answer.json()
            if answer.status_code == 503:
                self.refusals.append(answer)
                time.sleep(min(0.2, float(answer.headers["retry-after"])))
            assert time.monotonic() < deadline, "it never came back"

    def result(self, call: Any) -> Any:
        request_id = self.retried(call)["request_id"]
        return self.retried(lambda: self.http.poll(request_id))

    def run(self, steps: int, start: int = 1) -> list[Any]:
        """What every operation of the run answered."""
        seen = []
        for number in range(start, start + 2 * steps, 2):
            seen.append(self.result(lambda n=number: self.http.train(self.model, n)))
            step = {"model_id": self.model, "seq_id": number + 1, "adam_params": {}}
            seen.append(self.result(lambda s=step: self.http.call("POST", "optim_step", s)))
        return seen


@contextmanager
def serving(config: ServerConfig) -> Iterator[tuple[EmbeddedServer, Http]]:
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        yield server, Http(client, server.api_key)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What an undisturbed run answers."""
    with serving(null_config(tmp_path_factory.mktemp("quiet"))) as (_, http):
        return Client(http).run(12)


def test_a_full_disk_is_reported_and_the_run_ends_with_the_same_numbers(
    tmp_path: Path, expected: list[Any]
) -> None:
    with small_disk(tmp_path / "disk", size_mb=4) as disk:
        config = null_config(disk.path, scheduler=OFTEN, min_free_bytes=0)
        with serving(config) as (server, http):
            client = Client(http)
            pid, seen = server.pid, client.run(4)
            disk.fill()
            relief = threading.Timer(2.0, disk.relieve)
            relief.start()
            seen += client.run(4, start=9)
            relief.join()
            assert client.refusals, "the full disk was noticed"
            codes = {answer.json()["code"] for answer in client.refusals}
            assert codes <= {"disk-full", "disk-failed"}
            seen += client.run(4, start=17)
            assert seen == expected
            assert server.pid == pid
        with serving(config) as (_, http):
            assert http.get("healthz")["status"] == "ok"


def test_new_work_is_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_mb=4) as disk:
        config = null_config(disk.path, min_free_bytes=2_000_000, trim_every_s=0.2)
        with serving(config) as (_, http):
            model = http.model()
            disk.fill(leave_bytes=1_000_000)
            time.sleep(1.0)
            refused = http.train(model, 1)
            assert (refused.status_code, refused.json()["code"]) == (503, "disk-full")
            assert float(refused.headers["retry-after"]) > 0
            disk.relieve()
            time.sleep(1.0)
            http.result(http.train(model, 1).json()["request_id"])


def test_a_server_does_not_start_on_a_disk_it_cannot_write_to(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_mb=4) as disk:
        config = null_config(disk.path / "data")
        EmbeddedServer(config).close()
        disk.set_read_only(True)
        server = EmbeddedServer(config)
        with closing(server), pytest.raises(ServerError, match="data-dir-unusable"):
            server.start()
        disk.set_read_only(False)
        with EmbeddedServer(config) as server:
            assert server.base_url


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenOs]:
    folder = tmp_path / "broken"
    folder.mkdir()
    made = BrokenOs(folder)
    with monkeypatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
        made.heal()


FAULTS = {
    "no room": (WRITE, errno.ENOSPC),
    "a failing sync": (SYNC, errno.EIO),
    "a failing write": (WRITE, errno.EIO),
    "a disk turned read-only": (ALL_WRITING, errno.EROFS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_outage_of_the_disk_is_waited_out(
    tmp_path: Path, broken: BrokenOs, expected: list[Any], fault: str
) -> None:
    calls, error = FAULTS[fault]
    data = tmp_path / "data"
    with serving(null_config(data, scheduler=OFTEN, min_free_bytes=0)) as (server, http):
        client = Client(http)
        pid, seen = server.pid, client.run(4)
        broken.fail(calls, error, data)
        relief = threading.Timer(1.5, broken.heal)
        relief.start()
        seen += client.run(8, start=9)
        relief.join()
        assert broken.num_failed > 0
        assert seen == expected
        assert server.pid == pid


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sync", "write"])
def test_whichever_call_fails_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path, broken: BrokenOs, expected: list[Any], kind: str
) -> None:
    data = tmp_path / "data"
    with serving(null_config(data, scheduler=OFTEN, min_free_bytes=0)) as (_, http):
        for nth in range(amount(4, 1000)):
            skip = nth if IS_SOAK else (SEED + 7 * nth) % 40
            client = Client(http)
            calls, error = {"sync": (SYNC, errno.EIO), "write": (WRITE, errno.ENOSPC)}[kind]
            broken.fail(calls, error, data, skip=skip, times=1)
            seen = client.run(12)
            broken.heal()
            assert seen == expected, (kind, skip)
            if IS_SOAK and not broken.num_failed:
                assert nth > 20
                break  # the run has fewer calls than that: every one has failed once
