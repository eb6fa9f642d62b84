"""A server on a disk with 0 bytes free: deletes, expiry and retention work, and make space.

The saves that need the space are those of the real engine; what only frees rows and small folders
runs the null engine.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.support.disks import SmallDisk, small_disk
from tests.support.soak import SEED, amount
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.files.atomic_folder import verify_folder
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.store import Database, checkpoints
from tinkex.wire.limits import Limits

TINY = "tiny"
RANK = 64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / TINY, "smollm")


@contextmanager
def serving(config: ServerConfig) -> Iterator[tuple[EmbeddedServer, Http]]:
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        yield server, Http(client, server.api_key)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size_mb=32) as mounted:
        yield mounted


def save(http: Http, model: str, seq_id: int, name: str, **also: Any) -> Any:
    request = {"model_id": model, "path": name, "seq_id": seq_id, **also}
    return http.result(http.post("save_weights", request)["request_id"])


def listed(http: Http) -> set[str]:
    return {each["tinker_path"] for each in http.get("checkpoints")["checkpoints"]}


def folders_of(disk: SmallDisk, kind: str) -> set[str]:
    return {path.name for path in (disk.path / kind).iterdir()}


def delete(http: Http, path: str) -> httpx.Response:
    run, kind, name = path.removeprefix("tinker://").split("/")
    return http.call("DELETE", f"training_runs/{run}/checkpoints/{kind}/{name}")


def check_listed_are_whole(disk: SmallDisk) -> None:
    """Every checkpoint that has a row has its folder, and every file in it its hash."""
    db = Database(f"sqlite:///{disk.path / 'tinkex.db'}", readers=1)
    for checkpoint_id in db.read(checkpoints.all_ids):
        verify_folder(disk.path / "checkpoints" / checkpoint_id)
    db.close()


def num_results(disk: SmallDisk) -> int:
    with closing(sqlite3.connect(f"file:{disk.path / 'tinkex.db'}?mode=ro", uri=True)) as read:
        return int(read.execute("select count(*) from results").fetchone()[0])


def tiny_config(disk: SmallDisk, tiny: Path) -> ServerConfig:
    return ServerConfig(
        data_dir=disk.path,
        port=0,
        models=(ServedModel(name=TINY, source=str(tiny)),),
        num_threads=1,
        limits=Limits(max_disk_bytes_per_owner=1 << 40),
        min_free_bytes=0,
        poll_hold_s=3.0,
    )


def tiny_model(http: Http) -> str:
    request = {"session_id": http.session(), "model_seq_id": 0, "base_model": TINY}
    promise = http.post("create_model", {**request, "lora_config": {"rank": RANK, "seed": 1}})
    return str(http.result(promise["request_id"])["model_id"])


def fill_with_saves(http: Http, model: str) -> tuple[list[str], int]:
    """The paths of the saves that fitted, and the next number."""
    paths: list[str] = []
    for number in range(1, 200):
        request = {"model_id": model, "path": f"n{number}", "seq_id": number}
        answer = http.call("POST", "save_weights", request)
        if answer.status_code == 503:
            return paths, number
        saved = http.result(answer.json()["request_id"])
        if "error" in saved:
            assert saved["code"] == "disk-full", saved
            return paths, number + 1
        paths.append(saved["path"])
    raise AssertionError("the disk is never full")


def test_checkpoints_are_deleted_with_no_byte_free_and_saves_work_again(
    disk: SmallDisk, tiny: Path
) -> None:
    with serving(tiny_config(disk, tiny)) as (_, http):
        model = tiny_model(http)
        paths, number = fill_with_saves(http, model)
        assert len(paths) >= 4
        disk.fill()
        assert disk.free_bytes() == 0
        for path in paths[:4]:
            answer = delete(http, path)
            assert answer.status_code == 200, answer.text
            disk.fill()
            assert disk.free_bytes() == 0
        assert listed(http) == set(paths[4:])
        assert len(folders_of(disk, "checkpoints")) == len(paths) - 4
        disk.relieve()  # what the deletes have freed, for this test had taken it at once
        assert "path" in save(http, model, number, "again")
    check_listed_are_whole(disk)


def test_any_number_of_deletes_work_with_no_byte_free(disk: SmallDisk) -> None:
    with serving(null_config(disk.path, min_free_bytes=0)) as (_, http):
        model = http.model()
        paths = [save(http, model, n, f"n{n}")["path"] for n in range(1, 101)]
        disk.fill()
        for path in paths:
            answer = delete(http, path)
            assert answer.status_code == 200, answer.text
            disk.fill()
        assert folders_of(disk, "checkpoints") == set()
        assert listed(http) == set()
        disk.relieve()
        assert "path" in save(http, model, 101, "again")


def test_checkpoints_expire_with_no_byte_free(disk: SmallDisk) -> None:
    config = null_config(disk.path, min_free_bytes=0, trim_every_s=0.2, limits=Limits(min_ttl_s=1))
    with serving(config) as (_, http):
        model = http.model()
        for number in range(1, 41):
            save(http, model, number, f"n{number}", ttl_seconds=3)
        kept = save(http, model, 41, "kept")["path"]
        disk.fill()
        wait_until(lambda: len(folders_of(disk, "checkpoints")) == 1)
        assert listed(http) == {kept}
        disk.relieve()
        assert "path" in save(http, model, 42, "again")
    check_listed_are_whole(disk)


def test_retention_frees_samplers_results_and_sessions_with_no_byte_free(disk: SmallDisk) -> None:
    lives = dict.fromkeys(("result_life_s", "sampler_life_s", "session_life_s"), 3.0)
    config = null_config(disk.path, min_free_bytes=0, trim_every_s=0.2, **lives)
    with serving(config) as (_, http):
        session, left = http.session(), http.session()
        model, ended = http.model(session), http.model(left)
        for number in range(1, 21):
            http.result(http.train(model, number).json()["request_id"])
        request = {"model_id": model, "seq_id": 21, "sampling_session_seq_id": 0}
        http.result(http.post("save_weights_for_sampler", request)["request_id"])
        wait_until(lambda: len(folders_of(disk, "samplers")) == 1)
        http.result(http.train(ended, 1).json()["request_id"])
        saved = save(http, ended, 2, "state")["path"]
        load = {"model_id": ended, "seq_id": 3, "path": saved, "optimizer": True}
        http.result(http.post("load_weights", load)["request_id"])  # recovery starts from a folder
        held = folders_of(disk, "snapshots")
        assert held
        disk.fill()
        http.post(f"sessions/{left}/finish", {"reason": {"type": "success"}})
        wait_until(lambda: folders_of(disk, "samplers") == set())
        wait_until(lambda: not held & folders_of(disk, "snapshots"))
        wait_until(lambda: num_results(disk) == 0)
        disk.relieve()
        assert "path" in save(http, model, 22, "again")


def test_a_kill_between_row_and_files_on_a_full_disk_leaves_no_broken_checkpoint(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = null_config(disk.path, min_free_bytes=0)
    with serving(config) as (_, http):
        model = http.model()
        paths = [save(http, model, n, f"n{n}")["path"] for n in range(1, 11)]
    server = EmbeddedServer(config)
    with monkeypatch.context() as patch:
        patch.setenv("TINKEX_TEST_CRASH", "checkpoint.deleted:3")
        server.start()
    with closing(server), httpx.Client(base_url=server.base_url, timeout=60) as client:
        http = Http(client, server.api_key)
        disk.fill()
        assert [delete(http, path).status_code for path in paths[:2]] == [200, 200]
        disk.fill()
        with pytest.raises(httpx.TransportError):
            delete(http, paths[2])
        server.kill()  # it is dead; this lets go of its pipes
        disk.fill()
        assert disk.free_bytes() == 0
        assert len(folders_of(disk, "checkpoints")) == 8, "its row is gone, its files are not"
        server.start()
        assert listed(http) == set(paths[3:])
        assert len(folders_of(disk, "checkpoints")) == 7
        check_listed_are_whole(disk)
        disk.fill()
        assert delete(http, paths[3]).status_code == 200, "the reserve is there again"


def test_kills_at_any_moment_of_deletes_on_a_full_disk_leave_no_broken_checkpoint(
    disk: SmallDisk,
) -> None:
    config = null_config(disk.path, min_free_bytes=0)
    dice = random.Random(SEED)
    with serving(config) as (server, http):
        model = http.model()
        left = [save(http, model, n, f"n{n}")["path"] for n in range(1, 61)]
        for _ in range(amount(4, 40)):
            disk.fill()
            kill = threading.Timer(dice.uniform(0.0, 0.2), server.kill)
            kill.start()
            deleted = delete_until_killed(http, left)
            kill.join()
            server.start()
            seen = listed(http)
            assert not deleted & seen, "what was answered is gone"
            assert len(left) - len(seen) <= len(deleted) + 1, "and no more than was asked for"
            assert len(folders_of(disk, "checkpoints")) == len(seen)
            check_listed_are_whole(disk)
            left = sorted(seen)


def delete_until_killed(http: Http, paths: list[str]) -> set[str]:
    """What was deleted, and answered, before the server was gone."""
    deleted: set[str] = set()
    with suppress(httpx.TransportError):
        for path in paths:
            assert delete(http, path).status_code == 200
            deleted.add(path)
    return deleted


def test_sessions_with_heartbeats_stay_open_with_no_byte_free(disk: SmallDisk) -> None:
    config = null_config(
        disk.path, min_free_bytes=0, trim_every_s=0.2, patience_s=0.2, session_silence_s=4.0
    )
    with serving(config) as (server, http):
        beating, silent = http.session(), http.session()
        disk.fill()
        while silent not in interrupted_sessions(disk):  # filling again might take its reserve
            http.post("session_heartbeat", {"session_id": beating})
            time.sleep(0.05)
        assert "Housekeeping failed" in server.log(), "no heartbeat could be written"
        for _ in range(20):
            http.post("session_heartbeat", {"session_id": beating})
            time.sleep(0.05)
        assert interrupted_sessions(disk) == {silent}


def interrupted_sessions(disk: SmallDisk) -> set[str]:
    with closing(sqlite3.connect(f"file:{disk.path / 'tinkex.db'}?mode=ro", uri=True)) as read:
        query = "select session_id from sessions where finish_reason = 'interrupted'"
        return {row[0] for row in read.execute(query)}
