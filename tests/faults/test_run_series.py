"""Series of metrics and usage after kills at every stage of a step: as if nothing had happened."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.waiting import wait_until
from tinkex import AdamParams, Config, Runtime, ServiceClient, types
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer

KILLS = (
    "execute.after=forward_backward:4",
    "store.commit.before:25",
    "store.commit.after:28",
    "result.kept=forward_backward:5",
    "result.kept=optim_step:3",
    "sample.finished",
)
STEPS = 6


def work(server: EmbeddedServer) -> None:
    """A run with several batches a step, numbers of its own and a sample."""
    config = Config(base_url=server.base_url, api_key=server.api_key, environ={}, files=())
    with Runtime() as runtime, ServiceClient(config=config, runtime=runtime) as service:
        training = service.create_lora_training_client(MODEL, rank=4, seed=7)
        for step in range(STEPS):
            for n in range(2):
                training.forward_backward(make_data([3 + n, 5 + step]), CROSS_ENTROPY)
            training.optim_step(AdamParams(learning_rate=1e-3)).result(45)
            training.log_metrics({"reward": step}).result(45)
        sampling = training.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=4, seed=1)
        sampling.sample(types.ModelInput.from_ints([1, 2, 3]), 2, params).result(45)


def reported(server: EmbeddedServer) -> dict[str, Any]:
    """The series and the usage, but for times."""
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        http = Http(client, server.api_key)
        (run,) = http.get("training_runs?spark=1")["training_runs"]
        page = http.get(f"training_runs/{run['training_run_id']}/metrics")
        (usage,) = http.get("usage?by=total")["rows"]
    del page["columns"]["time"], run["latest"]["time"]
    tokens = {name: count for name, count in usage.items() if name.startswith("tokens")}
    return {
        "page": page,
        "tokens": tokens,
        "used": run["usage"],
        "latest": run["latest"],
        "spark": run["spark"],
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with EmbeddedServer(null_config(tmp_path_factory.mktemp("quiet"))) as server:
        work(server)
        found = reported(server)
    assert found["page"]["columns"]["step"][-1] == STEPS
    assert found["tokens"]["tokens_sampled"] == 8
    return found


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_changes_neither_series_nor_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], kill: str
) -> None:
    scheduler = SchedulerConfig(hole_grace_s=60.0, snapshot_after_operations=4)
    server = EmbeddedServer(null_config(tmp_path, scheduler=scheduler))
    with monkeypatch.context() as patch:
        patch.setenv("TINKEX_TEST_CRASH", kill)
        server.start()
    with closing(server):
        failures: list[BaseException] = []

        def run() -> None:
            try:
                work(server)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: not server.is_running or not thread.is_alive(), timeout_s=45)
        assert not server.is_running, f"{kill} was never passed"
        server.kill()  # it is dead; this lets go of its pipes
        server.start()
        thread.join()
        assert failures == []
        assert reported(server) == undisturbed
