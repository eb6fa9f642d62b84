"""The data folder stays in bounds over a long run, and what was trimmed is never run again.

The short form runs the null engine with limits of a second; the soak runs 10,000 steps of the tiny
model and prints the folder's size after each thousand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.driving import MODEL, Http, null_config, training_body
from tests.support.soak import IS_SOAK, amount
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

LIFE_S = 1.0 if not IS_SOAK else 10.0
SHORT_LIVES = {
    "result_life_s": LIFE_S,
    "sampler_life_s": LIFE_S,
    "session_life_s": LIFE_S,
    "record_life_s": 2 * LIFE_S,
    "trim_every_s": LIFE_S / 4,
    "max_sampler_bytes": 4_000_000,  # else their number would follow the machine's speed
    "min_free_bytes": 0,
}


@contextmanager
def serving(config: ServerConfig) -> Iterator[tuple[EmbeddedServer, Http]]:
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=amount(60, 600)) as client,
    ):
        yield server, Http(client, server.api_key)


def size_of(folder: Path) -> int:
    """Bytes of all files, those included that are just being written; what is just going is not
    counted."""
    total = 0
    for place, _, names in os.walk(folder):  # passes over folders that are gone by then
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def steps(http: Http, model: str, number: int, session: str, count: int) -> int:
    """Training steps, each with a sampler, and one sample; the next free number."""
    headers = {"X-API-Key": http.api_key, "Content-Type": "application/x-protobuf"}
    for first in range(number, number + 3 * count, 3):
        body = training_body(model, first, tokens=64)
        http.client.post("/api/v1/forward_backward", content=body, headers=headers)
        http.step(model, first + 1)
        save = {"model_id": model, "seq_id": first + 2, "sampling_session_seq_id": first}
        saved = http.post("save_weights_for_sampler", save)
    request = {
        "sampling_session_id": http.result(saved["request_id"])["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 4},
    }
    http.result(http.post("asample", request)["request_id"])
    http.post("session_heartbeat", {"session_id": session})
    return number + 3 * count


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_long_run_does_not_fill_the_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = null_config(data, scheduler=SchedulerConfig(snapshot_after_operations=50))
    if IS_SOAK:
        tiny = make_tiny_model(tmp_path / "tiny")
        models = (ServedModel(name=MODEL, source=str(tiny)),)
        config = null_config(data, device="cpu", models=models, scheduler=SchedulerConfig())
    config = _with(config, SHORT_LIVES)
    sizes: list[int] = []
    with serving(config) as (_, http):
        session = http.session()
        model, number = http.model(session), 1
        every = amount(40, 1000)
        for step in range(20, amount(240, 10_000) + 1, 20):
            number = steps(http, model, number, session, 20)
            if step % every == 0:
                sizes.append(size_of(data))
                if IS_SOAK:
                    print(f"{step} steps: {sizes[-1]:,} bytes", flush=True)
        time.sleep(3 * LIFE_S)
        at_rest = size_of(data)
    warm = len(sizes) // 3
    assert max(sizes[warm:]) <= 1.5 * max(sizes[:warm]) + 2_000_000, sizes
    assert at_rest <= max(sizes), "and what is old goes"


def _with(config: ServerConfig, changes: dict[str, Any]) -> ServerConfig:
    return msgspec.structs.replace(config, **changes)


def wait_gone(http: Http, request_id: str) -> httpx.Response:
    deadline = time.monotonic() + 20
    while (answer := http.poll(request_id)).status_code == 200:
        assert time.monotonic() < deadline, "it is never trimmed"
        time.sleep(0.1)
    return answer


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, Http]]:
    """A server that keeps nothing for long."""
    scheduler = SchedulerConfig(snapshot_after_operations=1, hole_grace_s=60.0)
    lives = {**SHORT_LIVES, "result_life_s": 1.0, "session_life_s": 1.0, "trim_every_s": 0.1}
    config = null_config(tmp_path_factory.mktemp("brief"), scheduler=scheduler, poll_hold_s=1.0)
    with serving(_with(config, lives)) as running:
        yield running


def restarted(brief: tuple[EmbeddedServer, Http]) -> Http:
    """The server after a `kill -9`: nothing is remembered in memory."""
    server, http = brief
    server.kill()
    server.start()
    return http


def test_a_trimmed_result_is_reported_and_its_number_never_runs_again(
    brief: tuple[EmbeddedServer, Http],
) -> None:
    _, http = brief
    model = http.model()
    first = http.train(model, 1).json()["request_id"]
    http.result(first)
    steps = [http.step(model, number)["request_id"] for number in (2, 3)]
    for request_id in steps:
        http.result(request_id)
    time.sleep(2.5)
    http = restarted(brief)
    error = wait_gone(http, first)
    assert (error.status_code, error.json()["code"]) == (410, "result-dropped")
    assert "no longer kept" in error.json()["detail"]
    again = http.train(model, 1)
    assert (again.status_code, again.json()["code"]) == (410, "result-dropped")
    usage = http.get(f"training_runs/{model}")["usage"]
    assert usage["optimizer_steps"] == 2
    fresh = http.result(http.step(model, 4)["request_id"])
    assert fresh["metrics"] == {"grad_norm": 0.0, "skipped": 1.0}, "nothing was added meanwhile"
    assert http.get(f"training_runs/{model}")["usage"]["optimizer_steps"] == 3


def test_another_owners_or_an_invented_request_is_unknown(
    brief: tuple[EmbeddedServer, Http],
) -> None:
    _, http = brief
    assert http.poll("0" * 32).status_code == 404


def test_a_run_whose_session_ended_keeps_its_checkpoints_alone(
    brief: tuple[EmbeddedServer, Http],
) -> None:
    _, http = brief
    session = http.session()
    model = http.model(session)
    http.result(http.train(model, 1).json()["request_id"])
    save = {"model_id": model, "seq_id": 2, "path": "kept"}
    path = http.result(http.post("save_weights", save)["request_id"])["path"]
    finish = {"reason": {"type": "success"}, "detail": None}
    assert http.call("POST", f"sessions/{session}/finish", finish).status_code == 200
    time.sleep(4.0)  # an operation now would be young and keep the run
    answer = http.train(model, 3)
    assert (answer.status_code, answer.json()["code"]) == (410, "run-ended")
    listed = http.get(f"training_runs/{model}/checkpoints")["checkpoints"]
    assert [each["tinker_path"] for each in listed] == [path]
    new = {"session_id": http.session(), "model_seq_id": 0, "path": path, "optimizer": True}
    assert http.result(http.post("load_weights", new)["request_id"])["type"] == "load_weights"


def test_results_go_early_when_a_tenant_has_too_many(tmp_path: Path) -> None:
    config = null_config(tmp_path, max_result_bytes=5_000, trim_every_s=0.1)
    with serving(config) as (server, http):
        model = http.model()
        ids = []
        for number in range(1, 40):
            ids.append(http.train(model, number, tokens=200).json()["request_id"])
            http.result(ids[-1])
        server.kill()
        server.start()
        time.sleep(1.0)
        error = wait_gone(http, ids[0])
        assert error.json()["code"] == "result-dropped"
        assert http.poll(ids[-1]).status_code == 200, "the youngest stay"
