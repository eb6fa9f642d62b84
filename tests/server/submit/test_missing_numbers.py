"""How long a missing number is waited for, while the requests of its model are still coming in."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from tests.server.driving import Http, null_config, training_body
from tests.support.keys import new_tenant_key
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer

GRACE_S = 1.0
LONG_S = 4 * GRACE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("missing")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    config = null_config(folder, scheduler=SchedulerConfig(hole_grace_s=GRACE_S))
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def tenant(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)


class Upload:
    """A training request whose body comes in two parts, with a pause between them."""

    def __init__(self, server: EmbeddedServer, key: str, body: bytes, *, packing: str = "") -> None:
        host, _, port = server.base_url.removeprefix("http://").partition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=30)
        head = (
            f"POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n"
            f"Content-Type: application/x-protobuf\r\nContent-Length: {len(body)}\r\n{packing}\r\n"
        )
        middle = len(body) * 3 // 4
        self._connection.sendall(head.encode() + body[:middle])
        self._rest = body[middle:]

    def finish(self) -> tuple[int, Any]:
        """Sends the rest; the answer."""
        self._connection.sendall(self._rest)
        answer = http.client.HTTPResponse(self._connection)
        answer.begin()
        said = json.loads(answer.read())
        self._connection.close()
        return answer.status, said

    def give_up(self) -> None:
        """Sends nothing more."""
        self._connection.close()


def in_blocks(body: bytes) -> bytes:
    """The body as one zstd frame of several blocks, as a large one is."""
    packer = zstandard.ZstdCompressor().compressobj()
    first = packer.compress(body[:1000]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return first + packer.compress(body[1000:]) + packer.flush()


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_number_on_its_way_in_is_not_passed_over(
    server: EmbeddedServer, tenant: Http, is_packed: bool
) -> None:
    model = tenant.model()
    body = training_body(model, 1, tokens=300, copies=300)
    packing = "Content-Encoding: zstd\r\n" if is_packed else ""
    sent = in_blocks(body) if is_packed else body
    upload = Upload(server, tenant.api_key, sent, packing=packing)
    later = tenant.train(model, 2).json()["request_id"]
    time.sleep(LONG_S)
    status, said = upload.finish()
    assert status == 200, said
    tenant.result(said["request_id"])
    tenant.result(later)


def test_the_first_chunk_may_come_after_a_long_upload_of_the_others(
    server: EmbeddedServer, tenant: Http
) -> None:
    model = tenant.model()
    last = Upload(server, tenant.api_key, training_body(model, 3, copies=50))
    second = tenant.train(model, 2)
    time.sleep(LONG_S)
    assert last.finish()[0] == 200
    first = tenant.train(model, 1)
    assert first.status_code == 200, first.text
    for each in (first, second):
        tenant.result(each.json()["request_id"])


def test_an_upload_that_began_before_the_order_was_known_counts(
    server: EmbeddedServer, tenant: Http
) -> None:
    model = tenant.model()
    server.kill()
    server.start()  # nothing is known of the model in memory
    upload = Upload(server, tenant.api_key, training_body(model, 1, copies=50))
    later = tenant.train(model, 2).json()["request_id"]
    time.sleep(LONG_S)
    assert upload.finish()[0] == 200
    tenant.result(later)


def test_an_upload_that_was_given_up_holds_nothing_up(server: EmbeddedServer, tenant: Http) -> None:
    model = tenant.model()
    upload = Upload(server, tenant.api_key, training_body(model, 1, copies=50))
    later = tenant.train(model, 2).json()["request_id"]
    upload.give_up()
    tenant.result(later)
    late = tenant.train(model, 1)
    assert (late.status_code, late.json()["code"]) == (422, "sequence-passed")


def test_another_tenants_upload_does_not_hold_up_the_order(
    server: EmbeddedServer, tenant: Http, folder: Path
) -> None:
    key = new_tenant_key(folder)
    model = tenant.model()
    foreign = Upload(server, key, training_body(model, 1, copies=50))
    later = tenant.train(model, 2).json()["request_id"]
    tenant.result(later)  # while the other upload is still open
    assert foreign.finish()[0] == 404
