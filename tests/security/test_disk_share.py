"""What one tenant may keep on disk unless the operator says otherwise: a share of the space there
is, so that the rest is left to others and to the log. Judged on a small disk with the real engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.driving import Http, null_config
from tests.support.disks import SmallDisk, small_disk
from tests.support.keys import new_tenant_key
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

TINY = "tiny"
MB = 1_000_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / TINY, "smollm")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size_mb=96) as mounted:
        yield mounted


def tiny_config(disk: SmallDisk, tiny: Path) -> ServerConfig:
    return ServerConfig(
        data_dir=disk.path,
        port=0,
        models=(ServedModel(name=TINY, source=str(tiny)),),
        num_threads=1,
        min_free_bytes=0,
        poll_hold_s=3.0,
        reserve_bytes=1 << 20,
    )


def new_model(http: Http) -> str:
    request = {"session_id": http.session(), "model_seq_id": 0, "base_model": TINY}
    promise = http.post("create_model", {**request, "lora_config": {"rank": 64, "seed": 1}})
    return str(http.result(promise["request_id"])["model_id"])


def save(http: Http, model: str, number: int) -> httpx.Response:
    request: dict[str, Any] = {"model_id": model, "path": f"n{number}", "seq_id": number}
    return http.call("POST", "save_weights", request)


def save_until_refused(http: Http, model: str) -> tuple[httpx.Response, int]:
    """The refusal, and its number."""
    for number in range(1, 300):
        answer = save(http, model, number)
        if answer.status_code != 200:
            return answer, number
        assert "path" in http.result(answer.json()["request_id"])
    raise AssertionError("nothing bounds what one tenant keeps")


def kept_bytes(http: Http) -> int:
    return sum(each["size_bytes"] for each in http.get("checkpoints?limit=1000")["checkpoints"])


def limit_of(http: Http) -> int:
    return int(http.get("get_server_capabilities")["limits"]["max_disk_bytes_per_owner"])


def test_one_tenant_leaves_a_fifth_of_the_space_to_others(disk: SmallDisk, tiny: Path) -> None:
    with (
        EmbeddedServer(tiny_config(disk, tiny)) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        greedy = Http(client, server.api_key)
        space = disk.free_bytes()
        advertised = limit_of(greedy)
        assert advertised == pytest.approx(0.8 * space, abs=2 * MB)
        model = new_model(greedy)
        refused, number = save_until_refused(greedy, model)
        error, kept = refused.json(), kept_bytes(greedy)
        assert (refused.status_code, error["code"]) == (422, "quota-exceeded")
        assert str(kept) in error["detail"]
        assert "80 %" in error["detail"]
        assert "tinkex checkpoint delete" in error["hint"]
        assert "--max-disk-bytes-per-owner" in error["hint"]
        assert disk.free_bytes() > 0.1 * space, "the rest is left"
        assert limit_of(greedy) > 0.85 * advertised, "files do not change it, the log a little"

        key = new_tenant_key(disk.path)
        polite = Http(client, key)
        theirs = save(polite, new_model(polite), 1)
        assert theirs.status_code == 200, theirs.text
        assert "path" in polite.result(theirs.json()["request_id"]), "others have space"

        for old in range(1, 31):
            gone = greedy.call("DELETE", f"training_runs/{model}/checkpoints/weights/n{old}")
            assert gone.status_code == 200, gone.text
        again = save(greedy, model, number + 1)
        assert again.status_code == 200, again.text
        assert "path" in greedy.result(again.json()["request_id"])


def test_the_limit_follows_what_other_programs_leave(disk: SmallDisk) -> None:
    config = null_config(disk.path, min_free_bytes=0)
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        http = Http(client, server.api_key)
        assert limit_of(http) > 60 * MB
    disk.fill(leave_bytes=10 * MB)
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        http = Http(client, server.api_key)
        assert limit_of(http) == pytest.approx(8 * MB, abs=2 * MB)


def test_a_limit_that_was_set_is_taken_as_it_is(disk: SmallDisk) -> None:
    limits = Limits(max_disk_bytes_per_owner=123_456_789_012)
    config = msgspec.structs.replace(null_config(disk.path), limits=limits)
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        assert limit_of(Http(client, server.api_key)) == 123_456_789_012
