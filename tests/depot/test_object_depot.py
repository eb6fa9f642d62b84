"""Folders in a real object store: whole or not there, also when a writer dies in between."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.exceptions import PermissionDeniedError

from tests.support.faulty_link import FaultyLink
from tests.support.tcp_listener import target_of
from tinkex.depot.object_depot import ObjectDepot
from tinkex.files.atomic_folder import (
    MANIFEST,
    listed_files,
    manifest_digest,
    verify_folder,
    write_folder,
)
from tinkex.files.errors import StorageError

FILES = {"a.safetensors": os.urandom(300_000), "b.json": b"{}", "c.bin": os.urandom(20 << 20)}
PUT = """
import sys
from pathlib import Path
from tinkex import crashpoints
from tinkex.depot.object_depot import ObjectDepot
crashpoints.arm(sys.argv[3])
getattr(ObjectDepot(sys.argv[1]), sys.argv[4])("snapshots", "one", *map(Path, sys.argv[2:3]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "one", FILES)
    return tmp_path / "one"


@pytest.fixture(params=["bucket", "container"])
def depot(request: pytest.FixtureRequest) -> ObjectDepot:
    """A depot in a bucket of S3, or in a container of Azure where its server is installed."""
    return ObjectDepot(request.getfixturevalue(request.param))


def keys(depot: ObjectDepot) -> list[str]:
    return [item["path"] for chunk in obstore.list(depot._store) for item in chunk]


def test_a_folder_comes_back_bit_for_bit(depot: ObjectDepot, folder: Path, tmp_path: Path) -> None:
    depot.put("snapshots", "one", folder)
    depot.get("snapshots", "one", tmp_path / "back")
    verify_folder(tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_bytes() for name in FILES} == FILES
    assert manifest_digest(tmp_path / "back") == manifest_digest(folder)
    assert depot.ids("snapshots") == {"one"}
    assert depot.ids("checkpoints") == set()


def test_a_second_put_of_the_same_is_fine_and_of_another_is_refused(
    depot: ObjectDepot, folder: Path, tmp_path: Path
) -> None:
    depot.put("snapshots", "one", folder)
    before = keys(depot)
    depot.put("snapshots", "one", folder)
    assert keys(depot) == before
    write_folder(tmp_path / "two", {"a.safetensors": b"other"})
    with pytest.raises(StorageError, match="already has another folder"):
        depot.put("snapshots", "one", tmp_path / "two")
    depot.get("snapshots", "one", tmp_path / "back")
    assert (tmp_path / "back" / "b.json").read_bytes() == b"{}"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_writer_killed_between_two_objects_leaves_no_folder_and_a_retry_succeeds(
    depot: ObjectDepot, folder: Path, tmp_path: Path, at: int
) -> None:
    command = [sys.executable, "-c", PUT, depot.url, str(folder), f"depot.put.file:{at}", "put"]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(keys(depot)) == at
    assert not depot.exists("snapshots", "one")
    assert depot.ids("snapshots") == set()
    with pytest.raises(StorageError, match="missing"):
        depot.get("snapshots", "one", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    depot.put("snapshots", "one", folder)
    depot.get("snapshots", "one", tmp_path / "back")
    verify_folder(tmp_path / "back")


def test_a_delete_killed_in_between_leaves_no_folder(depot: ObjectDepot, folder: Path) -> None:
    depot.put("snapshots", "one", folder)
    killed = [sys.executable, "-c", PUT.replace("sys.argv[2:3]", "[]"), depot.url, "-"]
    command = [*killed, "depot.delete.listed", "delete"]
    assert subprocess.run(command, check=False).returncode == -9
    assert not depot.exists("snapshots", "one")
    assert len(keys(depot)) == len(FILES)
    depot.delete("snapshots", "one")
    assert keys(depot) == []
    depot.delete("snapshots", "one")


def test_a_sweep_removes_what_nothing_names_and_leaves_what_is_young(
    depot: ObjectDepot, folder: Path
) -> None:
    for name in ("known", "unknown"):
        depot.put("snapshots", name, folder)
    obstore.put(depot._store, "snapshots/half/0123-a", b"x")
    depot.put("checkpoints", "other-kind", folder)
    assert depot.sweep("snapshots", {"known"}, older_than_s=3600) == 0
    assert depot.sweep("snapshots", {"known"}, older_than_s=-60) == 2
    assert depot.ids("snapshots") == {"known"}
    assert not [key for key in keys(depot) if "half" in key or "unknown" in key]
    assert depot.ids("checkpoints") == {"other-kind"}


@pytest.mark.parametrize("change", ["cut", "lost", "manifest"])
def test_damage_in_the_store_is_found(
    depot: ObjectDepot, folder: Path, tmp_path: Path, change: str
) -> None:
    depot.put("snapshots", "one", folder)
    key = next(each for each in keys(depot) if each.endswith("a.safetensors"))
    if change == "cut":
        obstore.put(depot._store, key, FILES["a.safetensors"][:-1])
    elif change == "lost":
        obstore.delete(depot._store, [key])
    else:
        obstore.put(depot._store, f"snapshots/one/{MANIFEST}", b'{"files": {}, "sha256": "0"}')
    with pytest.raises(StorageError) as raised:
        depot.get("snapshots", "one", tmp_path / "back")
    assert raised.value.code == "files-damaged"
    assert not (tmp_path / "back").exists()


def test_a_signed_address_gives_the_file_without_credentials(
    depot: ObjectDepot, folder: Path
) -> None:
    depot.put("checkpoints", "one", folder)
    file = listed_files(folder)["b.json"]
    url = depot.signed_url("checkpoints", "one", "b.json", file, expires_s=60)
    assert httpx.get(url).content == b"{}"


def test_a_store_that_is_away_is_a_storage_error(
    bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.depot.object_depot._RETRY_S", 0.5)
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError) as raised:
        ObjectDepot(bucket).put("snapshots", "one", folder)
    assert raised.value.code == "depot-failed"


def test_an_unknown_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ftp://x.*s3://, gs://, az://"):
        ObjectDepot("ftp://x")


def test_a_folder_without_a_list_is_not_put(depot: ObjectDepot, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match="missing"):
        depot.put("snapshots", "plain", tmp_path / "plain")
    assert keys(depot) == []


def test_what_is_known_of_a_folder_without_its_files(depot: ObjectDepot, folder: Path) -> None:
    assert depot.digest("snapshots", "one") is None
    with pytest.raises(StorageError, match="missing"):
        depot.files("snapshots", "one")
    depot.put("snapshots", "one", folder)
    assert depot.digest("snapshots", "one") == manifest_digest(folder)
    assert depot.files("snapshots", "one") == listed_files(folder)


def test_a_depot_is_claimed_once(depot: ObjectDepot) -> None:
    assert depot.claim("first") == "first"
    assert depot.claim("first") == "first"
    assert depot.claim("second") == "first"


def test_refused_credentials_are_said_to_be_refused(
    depot: ObjectDepot, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionDeniedError("403 Forbidden")

    monkeypatch.setattr("obstore.put", refuse)
    with pytest.raises(StorageError, match="refuses the server's credentials") as raised:
        depot.put("snapshots", "one", folder)
    assert raised.value.code == "depot-failed"


@pytest.fixture
def link(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyLink]:
    """The network between the depot and its store."""
    with FaultyLink(target_of(object_store)) as between:
        monkeypatch.setenv("AWS_ENDPOINT", between.url)
        yield between


def test_a_store_that_is_away_for_some_seconds_is_waited_for(
    bucket: str, link: FaultyLink, folder: Path, tmp_path: Path
) -> None:
    depot = ObjectDepot(bucket)
    depot.put("snapshots", "one", folder)
    link.refuse()
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(depot.get, "snapshots", "one", tmp_path / "back")
        writing = pool.submit(depot.put, "snapshots", "two", folder)
        time.sleep(4.0)
        link.heal()
        reading.result()
        writing.result()
    assert (tmp_path / "back" / "c.bin").read_bytes() == FILES["c.bin"]
    assert depot.ids("snapshots") == {"one", "two"}


def test_connections_cut_in_the_middle_of_a_file_are_made_anew(
    bucket: str, link: FaultyLink, folder: Path, tmp_path: Path
) -> None:
    depot = ObjectDepot(bucket)

    def cut_during(work: Callable[[], None]) -> None:
        with ThreadPoolExecutor() as pool:
            done = pool.submit(work)
            for _ in range(4):
                link.cut()
                time.sleep(0.05)
            done.result()

    for number in range(3):
        cut_during(partial(depot.put, "snapshots", f"{number}", folder))
        cut_during(partial(depot.get, "snapshots", f"{number}", tmp_path / f"{number}"))
        assert (tmp_path / f"{number}" / "c.bin").read_bytes() == FILES["c.bin"]
