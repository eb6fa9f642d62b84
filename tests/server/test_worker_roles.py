"""Workers that only train or only sample, as processes of their own on the null engine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http
from tests.server.test_operator import Operator
from tests.server.test_remote_workers import expected, remote_config, start_server, worker
from tests.server.test_restart import run_disturbed
from tests.support.waiting import wait_until
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.signing_secret import ensure_secret_file

pytestmark = pytest.mark.timeout(300)


def begin(
    tmp_path: Path, stack: ExitStack, **roles: str
) -> tuple[EmbeddedServer, ServerConfig, dict[str, Any]]:
    """A server, and workers by name with their roles."""
    config = remote_config(tmp_path / "data")
    config.data_dir.mkdir(parents=True)
    ensure_secret_file(config.data_dir / "worker-token")
    server = EmbeddedServer(config)
    stack.callback(server.close)
    started = {
        name: stack.enter_context(worker(config, tmp_path, name, "--role", role))
        for name, role in roles.items()
    }
    start_server(server, config, tmp_path, stack)
    return server, config, started


def test_a_trainer_and_two_samplers_do_their_part_and_a_sampler_may_die(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, config, workers = begin(
            tmp_path, stack, trainer="train", first="sample", second="sample"
        )
        operator = Operator(server, config.data_dir)
        wait_until(lambda: len(operator.workers()) == 3)
        roles = {name: each["roles"] for name, each in operator.workers().items()}
        assert roles == {"trainer": ["train"], "first": ["sample"], "second": ["sample"]}
        seen: list[dict[str, int]] = []

        def kill() -> None:
            seen.append({n: each["num_models"] for n, each in operator.workers().items()})
            workers["first"].kill()

        assert run_disturbed(server, kill, at=6) == expected(tmp_path)
        assert seen == [{"trainer": 1, "first": 0, "second": 0}]
        wait_until(lambda: set(operator.workers()) == {"trainer", "second"})
        for name, role in (("trainer", "train"), ("second", "sample")):
            refused = operator.ask("POST", f"/{name}/drain").json()
            assert refused["code"] == "last-worker"
            assert f"left to {role}" in refused["detail"]


def test_requests_wait_for_a_worker_of_their_role_and_say_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, config, _ = begin(tmp_path, stack, sampler="sample")
        url = f"{server.base_url}/api/v1/healthz"
        wait_until(lambda: httpx.get(url).json()["engine"].get("missing_roles") == ["train"])
        with httpx.Client(base_url=server.base_url, timeout=60) as client:
            http = Http(client, server.api_key)
            request = {"session_id": http.session(), "model_seq_id": 0, "base_model": MODEL}
            created = {**request, "lora_config": {"rank": 4, "seed": 7}}
            request_id = http.post("create_model", created)["request_id"]
            state = http.post("retrieve_future", {"request_id": request_id}, status=408)
            assert state["queue_state"] == "paused_capacity"
            assert "no worker is there that can train" in state["queue_state_reason"].lower()
            stack.enter_context(worker(config, tmp_path, "trainer", "--role", "train"))
            assert http.result(request_id)["model_id"]
        wait_until(lambda: httpx.get(url).json()["engine"]["missing_roles"] == [])


def test_a_role_that_does_not_exist_is_refused_with_a_sentence(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    config.data_dir.mkdir(parents=True)
    ensure_secret_file(config.data_dir / "worker-token")
    with worker(config, tmp_path, "odd", "--role", "train,judge") as process:
        assert process.wait(60) == 2
    said = (tmp_path / "odd.log").read_text()
    assert "--role='train,judge' is no role of a worker" in said
