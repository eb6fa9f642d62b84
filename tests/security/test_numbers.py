"""Numbers far ahead of a model's order are refused: everything before them would be waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http, null_config
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

MOST = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("numbers")
    config = null_config(folder, limits=Limits(max_numbers_ahead=MOST))
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def http(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)


@pytest.mark.parametrize("number", [MOST + 3, 2**31 - 1])
def test_a_number_too_far_ahead_is_refused_and_leaves_no_trace(http: Http, number: int) -> None:
    model = http.model()
    http.result(http.train(model, 1).json()["request_id"])
    answer = http.train(model, number)
    assert answer.status_code == 422
    assert answer.json()["code"] == "limit-exceeded"
    assert "seq_id=" in answer.json()["detail"]
    assert str(MOST) in answer.json()["detail"]
    http.result(http.step(model, 2)["request_id"])


def test_a_wide_gap_within_the_limit_is_passed_after_a_while(http: Http) -> None:
    model = http.model()
    http.result(http.train(model, 1).json()["request_id"])
    far = http.train(model, MOST + 2)
    assert far.status_code == 200, far.text
    http.result(far.json()["request_id"])
    http.result(http.step(model, MOST + 3)["request_id"])


def test_the_limit_goes_along_with_the_order(server: EmbeddedServer, http: Http) -> None:
    model = http.model()
    http.result(http.train(model, MOST).json()["request_id"])
    http.result(http.train(model, 2 * MOST).json()["request_id"])
    server.kill()
    server.start()  # nothing is known in memory
    assert http.train(model, 3 * MOST + 2).status_code == 422
    http.result(http.train(model, 3 * MOST + 1).json()["request_id"])


def test_another_owners_order_is_not_revealed(http: Http) -> None:
    answer = http.train("unknown:train:0", 2**31 - 1)
    assert answer.status_code == 404
