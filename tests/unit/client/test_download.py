"""Downloads: names that would leave the folder, short and damaged files, folders in the way."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import RestClient, ValidationError
from tinkex.client.download import _put_in_place, _safe_name
from tinkex.errors import APIConnectionError, APIError, APIResponseValidationError

FILES = {"adapter_config.json", "adapter_model.safetensors"}


@pytest.fixture
def path(connect: Connect) -> str:
    training = connect().create_lora_training_client(base_model="tiny/model")
    return training.save_weights_external("final").result(10).path


@pytest.fixture
def rest(connect: Connect) -> RestClient:
    return connect().create_rest_client()


def leftovers(folder: Path) -> list[str]:
    """What lies beside the folder and should not."""
    return [each.name for each in folder.parent.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a/..",
        ".",
        "a/./b",
        "a//b",
        "a/",
        "..\\up",
        "C:\\windows",
        "C:up",
        "a\0b",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(APIResponseValidationError, match="not allowed"):
        _safe_name(name)


@pytest.mark.parametrize("name", ["a", "a.b", "a/b/c", "...", "..a", "a b", "ä"])
def test_plain_names_are_let_through(name: str) -> None:
    assert _safe_name(name) == name


def test_files_arrive_whole_and_progress_is_reported(
    path: str, rest: RestClient, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int | None]] = []
    target = tmp_path / "deep" / "folder"
    found = rest.download_checkpoint(path, target, lambda *step: told.append(step)).result(10)
    assert found == target
    assert {each.name for each in target.iterdir()} == FILES
    assert {name for name, _, _ in told} == FILES
    assert all(so_far == whole for _, so_far, whole in told)
    assert leftovers(target) == []


def test_an_older_folder_is_replaced_whole(path: str, rest: RestClient, tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "stale").write_text("old")
    rest.download_checkpoint(path, target).result(10)
    assert {each.name for each in target.iterdir()} == FILES
    assert leftovers(target) == []


def test_a_file_in_the_way_is_left_alone(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    target = tmp_path / "folder"
    target.write_text("mine")
    with pytest.raises(ValidationError, match="is a file"):
        rest.download_checkpoint(path, target).result(10)
    assert target.read_text() == "mine"
    assert server.count("file") == 0
    assert leftovers(target) == []


def test_a_folder_that_cannot_be_swapped_in_gives_the_old_one_back(tmp_path: Path) -> None:
    folder, missing = tmp_path / "folder", tmp_path / "missing"
    folder.mkdir()
    (folder / "old").write_text("old")
    with pytest.raises(OSError, match="missing"):
        _put_in_place(missing, folder)
    assert (folder / "old").read_text() == "old"
    assert leftovers(folder) == []


def test_a_wrong_hash_is_an_error_and_a_right_one_is_not(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    body = b"weights"
    good = hashlib.sha256(body).hexdigest()
    for told in (good.upper(), "not a hash"):
        server.on("file").reply(body=body, headers={"X-Content-SHA256": told}).times(2)
        rest.download_checkpoint(path, tmp_path / "folder").result(10)
    server.on("file").reply(body=body, headers={"X-Content-SHA256": "0" * 64})
    with pytest.raises(APIResponseValidationError, match="damaged"):
        rest.download_checkpoint(path, tmp_path / "other").result(10)
    assert not (tmp_path / "other").exists()
    assert leftovers(tmp_path / "other") == []


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_storage_that_refuses_is_reported_by_file(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path, status: int
) -> None:
    server.on("file").reply(status, body="secret-signature")
    with pytest.raises(APIError, match=r"adapter_config\.json") as caught:
        rest.download_checkpoint(path, tmp_path / "folder").result(10)
    assert "secret-signature" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_short_file_leaves_nothing(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    server.on("file").truncate_body(3)
    with pytest.raises(APIConnectionError, match="broke off"):
        rest.download_checkpoint(path, tmp_path / "folder").result(10)
    assert list(tmp_path.iterdir()) == []


def urls(expires_in: timedelta, **files: str) -> dict[str, Any]:
    return {"urls": files, "expires": (datetime.now(UTC) + expires_in).isoformat()}


def test_a_checkpoint_without_files_is_an_error(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    server.on("external_weights_urls").reply(json_body=urls(timedelta(hours=1)))
    with pytest.raises(APIResponseValidationError, match="no files"):
        rest.download_checkpoint(path, tmp_path / "folder").result(10)


def test_a_file_that_is_lost_when_addresses_are_renewed_is_an_error(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    rule = "external_weights_urls"
    server.on(rule).reply(json_body=urls(timedelta(minutes=1), a=f"{server.url}/files/x/a"))
    server.on(rule).reply(json_body=urls(timedelta(hours=1), b=f"{server.url}/files/x/b"))
    with pytest.raises(APIResponseValidationError, match="lost a"):
        rest.download_checkpoint(path, tmp_path / "folder").result(10)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_progress_function_ends_the_download(
    path: str, rest: RestClient, tmp_path: Path
) -> None:
    def broken(*step: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        rest.download_checkpoint(path, tmp_path / "folder", broken).result(10)
    assert list(tmp_path.iterdir()) == []


def test_no_key_is_sent_to_the_storage(
    server: LoopbackServer, path: str, rest: RestClient, tmp_path: Path
) -> None:
    rest.download_checkpoint(path, tmp_path / "folder").result(10)
    for call in server.calls("file"):
        assert "x-api-key" not in call.headers
        assert "tml-a" not in " ".join(call.headers.values())
