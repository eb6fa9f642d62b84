"""A tenant that fills the running batch holds up neither another tenant nor itself.

The real engine and a tiny model. What is compared is order, not time: short samples are done while
the requests that came before them are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http
from tests.support.keys import new_tenant_key
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Http, Http]]:
    """Two tenants of one server."""
    root = tmp_path_factory.mktemp("seats")
    folder = make_tiny_model(root / "tiny", "smollm", max_position_embeddings=8192)
    config = ServerConfig(
        data_dir=root / "data",
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        poll_hold_s=0.1,
    )
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=45) as client,
    ):
        yield Http(client, server.api_key), Http(client, _new_key(root / "data"))


def _new_key(data_dir: Path) -> str:
    return new_tenant_key(data_dir)


class Sampling:
    """One tenant's sampling session."""

    def __init__(self, http: Http) -> None:
        self.http = http
        request = {
            "session_id": http.session(),
            "base_model": "tiny",
            "sampling_session_seq_id": 0,
        }
        self._session = http.post("create_sampling_session", request)["sampling_session_id"]
        self._count = 0

    def sample(self, num_samples: int, max_tokens: int) -> str:
        """The id of a request that stops at nothing."""
        self._count += 1
        body: dict[str, Any] = {
            "sampling_session_id": self._session,
            "seq_id": self._count,
            "num_samples": num_samples,
            "prompt": {
                "chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, self._count % 200]}]
            },
            "sampling_params": {"max_tokens": max_tokens, "stop": []},
        }
        while (answer := self.http.call("POST", "asample", body)).status_code == 429:
            time.sleep(float(answer.headers["retry-after"]))  # the machine may be busy with others
        assert answer.status_code == 200, answer.text
        return str(answer.json()["request_id"])

    def is_done(self, request_id: str) -> bool:
        return self.http.poll(request_id).status_code == 200

    def cancel(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.http.post("cancel_future", {"request_id": request_id})


@pytest.mark.parametrize(
    ("num_requests", "num_samples", "length"), [(1, 257, 8000), (300, 1, 2000)]
)
def test_short_samples_do_not_wait_for_a_full_batch(
    tenants: tuple[Http, Http], num_requests: int, num_samples: int, length: int
) -> None:
    greedy, other = Sampling(tenants[0]), Sampling(tenants[1])
    before: list[str] = []
    try:
        for _ in range(num_requests):
            before.append(greedy.sample(num_samples, length))
        for tenant in (other, greedy, other, greedy):
            (tokens,) = (
                each["tokens"] for each in tenant.http.result(tenant.sample(1, 4))["sequences"]
            )
            assert len(tokens) == 4
        assert not any(greedy.is_done(each) for each in before[-2:])
    finally:
        greedy.cancel(before)
