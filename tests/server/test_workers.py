"""`tinkex serve --workers N`: several engine processes, and what a client sees of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.server.driving import null_config
from tests.server.test_restart import run_disturbed
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import ConfigError
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.models.engine_factory import _options, engine_factories


def worker_pids(server: EmbeddedServer) -> list[int]:
    """The process ids of the server's workers."""
    found = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True)
    return [int(each) for each in found.stdout.split()]


def worker_states(server: EmbeddedServer) -> dict[str, str]:
    """What `/healthz` says of each worker."""
    answer = httpx.get(f"{server.base_url}/healthz", timeout=30)
    assert answer.status_code == 200
    return {each["name"]: each["state"] for each in answer.json()["engine"]["workers"]}


def await_all_ready(server: EmbeddedServer, count: int = 2) -> None:
    wait_until(lambda: list(worker_states(server).values()) == ["ready"] * count)


@pytest.mark.parametrize("workers", [0, -1, 65])
def test_a_number_of_workers_that_makes_no_sense_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot have {workers} workers") as caught:
        engine_factories(null_config(tmp_path, workers=workers))
    assert "--workers between 1 and 64" in caught.value.hint


def test_workers_divide_the_machine_and_one_alone_has_all_of_it(tmp_path: Path) -> None:
    config = null_config(tmp_path, num_threads=6)
    alone = _options(config)
    assert (alone.num_engines, alone.machine_bytes, alone.num_threads) == (1, None, 6)
    three = _options(msgspec.structs.replace(config, workers=3))
    assert three.num_engines == 3
    assert three.machine_bytes is not None
    assert len(engine_factories(msgspec.structs.replace(config, workers=3))) == 3


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What an undisturbed run on one engine gives."""
    with EmbeddedServer(null_config(tmp_path_factory.mktemp("quiet"))) as server:
        return run_disturbed(server, lambda: None, at=-1)


def kill_one(server: EmbeddedServer, number: int) -> None:
    os.kill(worker_pids(server)[number], signal.SIGKILL)


def kill_both(server: EmbeddedServer) -> None:
    for pid in worker_pids(server):
        os.kill(pid, signal.SIGKILL)


def freeze_both(server: EmbeddedServer) -> None:
    for pid in worker_pids(server):
        os.kill(pid, signal.SIGSTOP)


def restart(server: EmbeddedServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize(
    "disturb",
    [
        lambda server: kill_one(server, 0),
        lambda server: kill_one(server, 1),
        kill_both,
        freeze_both,
        restart,
    ],
    ids=["first killed", "second killed", "both killed", "frozen", "server killed"],
)
def test_whatever_happens_to_workers_the_client_sees_what_it_would_have_seen(
    tmp_path: Path, expected: object, disturb: Callable[[EmbeddedServer], None]
) -> None:
    config = null_config(
        tmp_path,
        workers=2,
        scheduler=SchedulerConfig(hole_grace_s=30.0, snapshot_after_operations=5),
        engine_ping_s=0.2,
        engine_hang_s=2.0,
    )
    with EmbeddedServer(config) as server:
        await_all_ready(server)
        assert len(worker_pids(server)) == 2
        assert run_disturbed(server, lambda: disturb(server), at=4) == expected
        await_all_ready(server)


def test_health_names_the_worker_that_does_not_respond(tmp_path: Path) -> None:
    config = null_config(tmp_path, workers=2, engine_ping_s=0.1, engine_hang_s=60.0)
    with EmbeddedServer(config) as server:
        await_all_ready(server)
        frozen = worker_pids(server)[0]
        os.kill(frozen, signal.SIGSTOP)
        wait_until(lambda: sorted(worker_states(server).values()) == ["not_responding", "ready"])
        os.kill(frozen, signal.SIGCONT)
        await_all_ready(server)


def test_one_worker_alone_is_not_listed(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server:
        answer = httpx.get(f"{server.base_url}/healthz", timeout=30).json()
    assert answer.keys() == {"status", "engine"}
    assert answer["engine"].keys() == {"state", "since_s"}


def test_with_the_real_engine_a_killed_worker_changes_no_bit(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", "smollm")

    def config(name: str, workers: int) -> ServerConfig:
        return ServerConfig(
            data_dir=tmp_path / name,
            port=0,
            models=(ServedModel(name="tiny", source=str(folder)),),
            num_threads=workers,
            workers=workers,
        )

    with EmbeddedServer(config("one", 1)) as server:
        expected = run_disturbed(server, lambda: None, at=-1, model="tiny")
    with EmbeddedServer(config("two", 2)) as server:
        await_all_ready(server)
        seen = run_disturbed(server, lambda: kill_both(server), at=4, model="tiny")
    assert seen == expected
