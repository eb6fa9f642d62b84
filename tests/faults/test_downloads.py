"""Downloads that break: nothing half is ever left where a whole checkpoint is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.support.state import Checkpoint
from tinkex import RestClient
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    InternalServerError,
    NotFoundError,
    TinkexError,
)

MODEL = "tiny/model"


@pytest.fixture
def export(server: LoopbackServer, connect: Connect) -> tuple[RestClient, Checkpoint]:
    """A REST client and an exported checkpoint."""
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    path = training.save_weights_external("export").result(20).path
    return service.create_rest_client(), server.service.world.checkpoints[path]


BREAKS = {
    "cut after the headers": (lambda rule: rule.drop_after_headers(), APIConnectionError),
    "cut inside": (lambda rule: rule.truncate_body(7000), APIConnectionError),
    "reset inside": (lambda rule: rule.truncate_body(7000, is_reset=True), APIConnectionError),
    "gone": (lambda rule: rule.reply(404), NotFoundError),
    "storage away": (lambda rule: rule.html_502(), InternalServerError),
}


@pytest.mark.parametrize(("break_it", "kind"), BREAKS.values(), ids=BREAKS.keys())
def test_a_broken_transfer_leaves_nothing(
    server: LoopbackServer,
    export: tuple[RestClient, Checkpoint],
    tmp_path: Path,
    break_it: object,
    kind: type[TinkexError],
) -> None:
    rest, saved = export
    break_it(server.on("file").after(1))  # type: ignore[operator]

    outcome = rest.download_checkpoint(saved.tinker_path, tmp_path / "out").outcome(20)

    assert isinstance(outcome.error, kind)
    assert list(tmp_path.iterdir()) == []
    assert server.count("file") == 2
    assert rest.download_checkpoint(saved.tinker_path, tmp_path / "out").outcome(20).ok


def test_an_older_folder_survives_a_broken_transfer(
    server: LoopbackServer, export: tuple[RestClient, Checkpoint], tmp_path: Path
) -> None:
    rest, saved = export
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    server.on("file").truncate_body(10)

    assert not rest.download_checkpoint(saved.tinker_path, tmp_path / "out").outcome(20).ok

    assert (tmp_path / "out" / "mine.txt").read_text() == "keep me"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\evil", "c:evil", ""])
def test_a_file_name_cannot_leave_the_folder(
    server: LoopbackServer, export: tuple[RestClient, Checkpoint], tmp_path: Path, name: str
) -> None:
    rest, saved = export
    urls = {"urls": {name: f"{server.url}/files/x"}, "expires": "2036-01-02T03:04:05+00:00"}
    server.on("external_weights_urls").reply(200, json_body=urls)

    outcome = rest.download_checkpoint(saved.tinker_path, tmp_path / "out").outcome(20)

    assert isinstance(outcome.error, APIResponseValidationError)
    assert list(tmp_path.iterdir()) == []
    assert server.count("file") == 0


def test_a_damaged_file_is_recognised_by_its_hash(
    server: LoopbackServer, export: tuple[RestClient, Checkpoint], tmp_path: Path
) -> None:
    rest, saved = export
    server.on("file").reply(200, headers={"x-content-sha256": "0" * 64}, body=b"damaged")

    outcome = rest.download_checkpoint(saved.tinker_path, tmp_path / "out").outcome(20)

    assert isinstance(outcome.error, APIResponseValidationError)
    assert list(tmp_path.iterdir()) == []


def test_a_slow_file_is_let_through(
    server: LoopbackServer, export: tuple[RestClient, Checkpoint], tmp_path: Path
) -> None:
    rest, saved = export
    server.on("file").slow(bytes_per_s=1000).times(1)

    folder = rest.download_checkpoint(saved.tinker_path, tmp_path / "out").result(20)

    assert {f.name: f.read_bytes() for f in folder.iterdir()} == saved.files


def test_addresses_that_are_about_to_expire_are_renewed(
    server: LoopbackServer, export: tuple[RestClient, Checkpoint], tmp_path: Path
) -> None:
    rest, saved = export
    urls = {f: f"{server.url}/files/{saved.number}/{f}" for f in saved.files}
    expired = {"urls": urls, "expires": "2020-01-02T03:04:05+00:00"}
    server.on("external_weights_urls").reply(200, json_body=expired)

    folder = rest.download_checkpoint(saved.tinker_path, tmp_path / "out").result(20)

    assert {f.name: f.read_bytes() for f in folder.iterdir()} == saved.files
    assert server.count("external_weights_urls") == 2
