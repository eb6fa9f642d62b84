"""The wall clock of a running server jumps by an hour, forward and back: no client notices.

A real server in a process of its own, whose clock a preloaded library moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.support.broken_os import BrokenOs
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

HOUR = 3600


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> BrokenOs:
    return BrokenOs(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def http(broken: BrokenOs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    config = null_config(
        tmp_path_factory.mktemp("data"),
        limits=Limits(min_ttl_s=1),
        result_life_s=600.0,
        session_silence_s=600.0,
        session_life_s=600.0,
        sampler_life_s=600.0,
        token_life_s=600.0,
        download_life_s=600.0,
        patience_s=0.0,
        trim_every_s=0.2,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in broken.environment.items():
            patch.setenv(name, value)
        server = EmbeddedServer(config)
        server.start()
    with closing(server), httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)


@pytest.fixture
def jumps(broken: BrokenOs) -> Iterator[BrokenOs]:
    broken.set_clock(0)
    yield broken
    broken.set_clock(0)


def rounds_of_housekeeping() -> None:
    time.sleep(1.0)


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR])
def test_what_is_alive_stays_alive(http: Http, jumps: BrokenOs, jump_s: int) -> None:
    session = http.session()
    model = http.model(session)
    trained = http.train(model, 1).json()["request_id"]
    http.result(trained)
    save = {"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0}
    sampler = http.result(http.post("save_weights_for_sampler", save)["request_id"])
    export = {"model_id": model, "seq_id": 3, "path": "out"}
    path = http.result(http.post("save_weights_external", export)["request_id"])["path"]
    run, kind, name = path.removeprefix("tinker://").split("/")
    urls = http.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")
    token = http.post("auth/token")["jwt"]
    jumps.jump(jump_s)
    rounds_of_housekeeping()
    http.post("session_heartbeat", {"session_id": session})
    assert http.poll(trained).status_code == 200, "the result is not an hour old"
    renewed = Http(http.client, token)
    assert renewed.call("GET", "auth/apikey/me").status_code == 200, "nor is the token"
    link = next(iter(urls["urls"].values()))
    assert httpx.get(link).status_code == 200, "nor the link"
    request = {
        "sampling_session_id": sampler["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    }
    assert "error" not in http.result(http.post("asample", request)["request_id"])
    assert http.result(http.step(model, 4)["request_id"])["metrics"]["grad_norm"] > 0


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR])
def test_a_checkpoint_stays_until_both_clocks_say_that_its_date_came(
    http: Http, jumps: BrokenOs, jump_s: int
) -> None:
    model = http.model()
    save = {"model_id": model, "seq_id": 1, "path": "short", "ttl_seconds": 3}
    http.result(http.post("save_weights", save)["request_id"])
    saved_at = time.monotonic()
    jumps.jump(jump_s)
    rounds_of_housekeeping()
    listed = f"training_runs/{model}/checkpoints"
    if time.monotonic() - saved_at < 2.5:
        assert len(http.get(listed)["checkpoints"]) == 1
    time.sleep(max(0.0, saved_at + 3.5 - time.monotonic()))
    is_late = jump_s < 0  # by the wall clock its date has not come
    assert len(http.get(listed)["checkpoints"]) == is_late
    jumps.jump(-jump_s)
    rounds_of_housekeeping()
    assert http.get(listed)["checkpoints"] == []


def test_dates_that_are_shown_are_the_wall_clocks(http: Http, jumps: BrokenOs) -> None:
    jumps.jump(HOUR)
    shown = http.get(f"training_runs/{http.model()}")["last_request_time"]
    ahead_s = datetime.fromisoformat(shown).timestamp() - time.time()
    assert HOUR - 60 < ahead_s < HOUR + 60


def test_a_restart_under_a_jumped_clock_keeps_what_is_young(
    broken: BrokenOs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in broken.environment.items():
        monkeypatch.setenv(name, value)
    config = null_config(tmp_path, trim_every_s=0.2, patience_s=0.0)  # a day of everything
    server = EmbeddedServer(config)
    try:
        server.start()
        with httpx.Client(base_url=server.base_url, timeout=60) as client:
            http = Http(client, server.api_key)
            session = http.session()
            model = http.model(session)
            trained = http.train(model, 1).json()["request_id"]
            expected = http.result(trained)
            for jump_s in (HOUR, -2 * HOUR, HOUR):
                server.kill()
                broken.jump(jump_s)
                server.start()
                rounds_of_housekeeping()
                assert http.result(trained) == expected
                http.post("session_heartbeat", {"session_id": session})
    finally:
        server.close()
        broken.set_clock(0)
