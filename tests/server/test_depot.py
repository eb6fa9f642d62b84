"""A server whose folders are in a depot: nothing needs its own disk, and nothing is mixed up."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.server.test_restart import run_disturbed
from tests.support.fault_proxy import Act, Exchange, FaultProxy
from tests.support.object_stores import bucket, object_store
from tests.support.waiting import wait_until
from tinkex.errors import ServerError
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer

__all__ = ["bucket", "object_store"]


@contextmanager
def http_to(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)


def lose_copies(data_dir: Path) -> None:
    for kind in DataFolders.KINDS:
        shutil.rmtree(data_dir / kind)


def save(http: Http, model: str, seq_id: int, kind: str = "save_weights") -> Any:
    promise = http.post(kind, {"model_id": model, "seq_id": seq_id, "path": f"at-{seq_id}"})
    return http.result(promise["request_id"])


def load(http: Http, model: str, seq_id: int, path: str) -> Any:
    promise = http.post(
        "load_weights", {"model_id": model, "seq_id": seq_id, "path": path, "optimizer": True}
    )
    return http.result(promise["request_id"])


def check_refused(config: ServerConfig, why: str) -> None:
    server = EmbeddedServer(config)
    with closing(server), pytest.raises(ServerError, match=why):
        server.start()


def trained(http: Http) -> str:
    model = http.model()
    http.result(http.train(model, 1).json()["request_id"])
    http.result(http.step(model, 2)["request_id"])
    return model


def restarted_elsewhere(server: EmbeddedServer, data_dir: Path) -> Callable[[], None]:
    def disturb() -> None:
        server.kill()
        lose_copies(data_dir)
        server.start()

    return disturb


def test_a_run_goes_on_where_the_disk_is_empty(tmp_path: Path, bucket: str) -> None:
    with EmbeddedServer(null_config(tmp_path / "quiet")) as server:
        expected = run_disturbed(server, lambda: None, at=-1)
    scheduler = SchedulerConfig(hole_grace_s=30.0, snapshot_after_operations=5)
    config = null_config(tmp_path / "moved", scheduler=scheduler, depot=bucket)
    with EmbeddedServer(config) as server:
        moved = restarted_elsewhere(server, config.data_dir)
        assert run_disturbed(server, moved, at=6) == expected


def test_what_was_saved_before_there_was_a_depot_moves_into_it(tmp_path: Path, bucket: str) -> None:
    with EmbeddedServer(null_config(tmp_path)) as server, http_to(server) as http:
        model = trained(http)
        path = save(http, model, 3)["path"]
        key = server.api_key
    config = null_config(tmp_path, depot=bucket, bootstrap_key=key)
    with EmbeddedServer(config) as server:
        server.stop()
        lose_copies(tmp_path)
        server.start()
        with http_to(server) as http:
            assert load(http, model, 4, path)["type"] == "load_weights"


def test_a_server_never_starts_without_the_depot_of_its_database(
    tmp_path: Path, bucket: str
) -> None:
    with EmbeddedServer(null_config(tmp_path, depot=bucket)):
        pass
    check_refused(null_config(tmp_path), "in a depot, and --depot is not given")


def test_two_databases_never_share_a_depot(tmp_path: Path, bucket: str) -> None:
    with EmbeddedServer(null_config(tmp_path / "one", depot=bucket)):
        pass
    check_refused(null_config(tmp_path / "two", depot=bucket), "belongs to another database")
    with EmbeddedServer(null_config(tmp_path / "two")):
        pass  # the refused start did not bind it to a depot


def test_a_folder_that_all_see_is_a_depot_too(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    config = null_config(tmp_path / "one", depot=str(shared))
    with EmbeddedServer(config) as server, http_to(server) as http:
        model = trained(http)
        path = save(http, model, 3)["path"]
        assert len(list((shared / "checkpoints").iterdir())) == 1
        assert load(http, model, 4, path)["type"] == "load_weights"
    check_refused(null_config(tmp_path / "two", depot=str(shared)), "belongs to another database")


def test_folders_left_in_the_data_folder_are_never_forgotten(tmp_path: Path) -> None:
    with EmbeddedServer(null_config(tmp_path / "data")) as server, http_to(server) as http:
        save(http, trained(http), 3)
    config = null_config(tmp_path / "data", depot=str(tmp_path / "shared"))
    check_refused(config, r"still holds checkpoints.*mv ")


def test_an_export_is_downloaded_from_the_object_store(
    tmp_path: Path, bucket: str, object_store: str
) -> None:
    with (
        EmbeddedServer(null_config(tmp_path, depot=bucket)) as server,
        http_to(server) as http,
    ):
        model = trained(http)
        path = save(http, model, 3, "save_weights_external")["path"]
        run, kind, name = path.removeprefix("tinker://").split("/")
        urls = http.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")[
            "urls"
        ]
        assert urls
        for name, url in urls.items():
            assert url.startswith(object_store)
            assert httpx.get(url).content, name


class Gate:
    """A plan that cuts every request while the store is meant to be away."""

    is_away = False

    def draw(self, route: str) -> tuple[str, random.Random, Act]:
        return ("cut", random.Random(0), cut) if self.is_away else ("pass", random.Random(0), ok)


async def cut(exchange: Exchange) -> None:
    exchange.cut()


async def ok(exchange: Exchange) -> None:
    answer = await exchange.forward()
    await exchange.client.write(answer.whole)


def test_a_store_that_is_away_for_a_while_costs_errors_and_no_state(
    tmp_path: Path, bucket: str, object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with FaultProxy(object_store, gate) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", proxy.url)
        config = null_config(tmp_path, depot=bucket)
        with EmbeddedServer(config) as server, http_to(server) as http:
            model = trained(http)
            gate.is_away = True
            refused = save(http, model, 3)
            assert refused["category"] == "server"
            assert "object store" in refused["error"]
            http.result(http.train(model, 4).json()["request_id"])
            gate.is_away = False
            assert save(http, model, 5)["path"].endswith("at-5")
            wait_until(lambda: len(list((tmp_path / "checkpoints").iterdir())) == 1)
