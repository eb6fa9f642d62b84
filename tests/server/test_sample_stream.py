"""Streamed samples of a real engine: the tokens of the result, through kills, restarts and cuts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http
from tests.server.sample_streams import (
    Sequences,
    base_sampler,
    expect_result,
    follow,
    following,
    submit,
)
from tests.server.test_restart import engine_pid
from tests.support.keys import new_tenant_key
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

_LONG = 100_000  # tokens: minutes of work for the tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes very long answers."""
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 2 * _LONG
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(data_dir: Path, model: Path) -> Iterator[EmbeddedServer]:
    config = ServerConfig(
        data_dir=data_dir,
        port=0,
        models=(ServedModel(name="tiny", source=str(model)),),
        num_threads=1,
        poll_hold_s=1.0,
        drain_s=5.0,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def http(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)


@pytest.fixture
def sampler(http: Http) -> str:
    return base_sampler(http, "tiny")


def _state(http: Http, request_id: str) -> int:
    return http.poll(request_id).status_code


def test_the_stream_is_the_result_and_that_of_an_unstreamed_sample(
    http: Http, sampler: str
) -> None:
    fields = {"num_samples": 3, "seed": 7, "max_tokens": 60, "topk_sample_logprobs": 2}
    streamed = Sequences(3)
    request_id = submit(http, sampler, **fields)
    assert streamed.add_all(follow(http, request_id)) == {"request_id": request_id, "error": None}
    expect_result(http, request_id, streamed)
    plain = http.result(submit(http, sampler, stream=False, **fields))["sequences"]
    assert [each["tokens"] for each in plain] == streamed.tokens
    assert [each["logprobs"] for each in plain] == streamed.logprobs
    assert [each["topk_logprobs"] for each in plain] == streamed.topk


def test_tokens_come_while_the_sample_runs(http: Http, sampler: str) -> None:
    request_id = submit(http, sampler, max_tokens=_LONG, stop=[])
    early, late = Sequences(), Sequences()
    with following(http, request_id) as events:
        for _ in range(3):
            early.add(next(events))
        with following(http, request_id) as others:
            late.add(next(others))
        assert late.tokens[0][: len(early.tokens[0])] == early.tokens[0], "from the beginning"
        assert _state(http, request_id) == 408
    http.post("cancel_future", {"request_id": request_id})


def test_a_stop_is_the_last_token(http: Http, sampler: str) -> None:
    free = Sequences()
    free.add_all(follow(http, submit(http, sampler, seed=3, max_tokens=30, stop=[])))
    stopped = Sequences()
    request_id = submit(http, sampler, seed=3, max_tokens=30, stop=[free.tokens[0][9]])
    stopped.add_all(follow(http, request_id))
    assert stopped.stop_reasons == ["stop"]
    assert stopped.tokens[0][-1] == free.tokens[0][9]
    expect_result(http, request_id, stopped)


def test_a_cut_stream_goes_on_where_it_was(http: Http, sampler: str) -> None:
    request_id = submit(http, sampler, num_samples=2, max_tokens=400, stop=[])
    streamed = Sequences(2)
    for _ in range(3):
        with following(http, request_id, offsets=streamed.offsets) as events:
            streamed.add(next(events))
            streamed.add(next(events))
    streamed.add_all(follow(http, request_id, offsets=streamed.offsets))
    expect_result(http, request_id, streamed)
    assert follow(http, request_id, offsets=streamed.offsets)[0][0] == "end", "nothing twice"
    whole = Sequences(2)
    whole.add_all(follow(http, request_id))
    assert whole.tokens == streamed.tokens


def test_a_sample_that_was_not_streamed_can_be_followed(http: Http, sampler: str) -> None:
    request_id = submit(http, sampler, stream=False, max_tokens=20)
    streamed = Sequences()
    streamed.add_all(follow(http, request_id))
    expect_result(http, request_id, streamed)


@pytest.mark.parametrize("seed", [None, 5], ids=["no seed", "a seed"])
def test_a_killed_engine_changes_nothing_for_a_stream(
    http: Http, sampler: str, server: EmbeddedServer, seed: int | None
) -> None:
    streamed = Sequences(2)
    request_id = submit(http, sampler, num_samples=2, max_tokens=800, stop=[], seed=seed)
    with following(http, request_id) as events:
        while min(streamed.offsets) < 20:
            streamed.add(next(events))
        os.kill(engine_pid(server), signal.SIGKILL)
        streamed.add_all(list(events))
    expect_result(http, request_id, streamed)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_restarted_server_goes_on_with_a_stream(
    http: Http, sampler: str, server: EmbeddedServer, is_clean: bool
) -> None:
    streamed = Sequences(2)
    request_id = submit(http, sampler, num_samples=2, max_tokens=1000, stop=[])
    with following(http, request_id) as events:
        while min(streamed.offsets) < 20:
            streamed.add(next(events))
        if is_clean:
            with ThreadPoolExecutor() as threads:
                stopping = threads.submit(server.stop)
                for event in events:
                    streamed.add(event)
                stopping.result()
        else:
            server.kill()
    server.start()
    streamed.add_all(follow(http, request_id, offsets=streamed.offsets))
    expect_result(http, request_id, streamed)


def test_a_closed_stream_cancels_only_if_it_should(http: Http, sampler: str) -> None:
    kept = submit(http, sampler, max_tokens=_LONG, stop=[])
    dropped = submit(http, sampler, max_tokens=_LONG, stop=[])
    for request_id, cancels in ((kept, False), (dropped, True)):
        with following(http, request_id, cancel_when_closed=cancels) as events:
            next(events)
    wait_until(lambda: _state(http, dropped) == 200)
    assert "cancelled" in http.result(dropped)["error"]
    assert _state(http, kept) == 408
    http.post("cancel_future", {"request_id": kept})


def test_a_cancelled_sample_ends_its_stream(http: Http, sampler: str) -> None:
    request_id = submit(http, sampler, max_tokens=_LONG, stop=[])
    with following(http, request_id) as events:
        next(events)
        http.post("cancel_future", {"request_id": request_id})
        last = list(events)[-1]
    assert last[0] == "end"
    assert "cancelled" in last[1]["error"]
    assert [name for name, _ in follow(http, request_id)] == ["end"]


def test_another_tenant_finds_nothing(http: Http, sampler: str, data_dir: Path) -> None:
    other_key = new_tenant_key(data_dir)
    request_id = submit(http, sampler)
    other = Http(http.client, other_key)
    refused = other.call("POST", "stream_sample", {"request_id": request_id})
    unknown = other.call("POST", "stream_sample", {"request_id": "0" * len(request_id)})
    assert (refused.status_code, unknown.status_code) == (404, 404)
    assert refused.json()["code"] == unknown.json()["code"] == "unknown-request"


def test_wrong_offsets_are_refused(http: Http, sampler: str) -> None:
    request_id = submit(http, sampler)
    answer = http.call("POST", "stream_sample", {"request_id": request_id, "offsets": [0, 0]})
    assert answer.status_code == 422
    assert "1 sequences" in answer.json()["detail"]
    negative = http.call("POST", "stream_sample", {"request_id": request_id, "offsets": [-1]})
    assert negative.status_code == 422
    http.result(request_id)
    name, end = follow(http, request_id, offsets=[99])[0]
    assert (name, "not those that were streamed" in end["error"]) == ("end", True)


def test_a_reader_that_stops_reading_holds_up_no_other(http: Http, sampler: str) -> None:
    held = submit(http, sampler, max_tokens=20_000, num_samples=4, stop=[], topk_sample_logprobs=5)
    with following(http, held) as events:
        next(events)  # and reads no more
        quick = Sequences()
        other = submit(http, sampler, max_tokens=50, stop=[])
        quick.add_all(follow(http, other))
        expect_result(http, other, quick)
        http.post("cancel_future", {"request_id": held})
