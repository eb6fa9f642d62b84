"""Telemetry under faults: one start and one end per logical request, every retry told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import telemetry, types

MODEL = "tiny/model"
Heard = list[tuple[str, dict[str, Any], dict[str, Any]]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Every event of the test, in order."""
    events: Heard = []
    telemetry.attach(
        "fault-tests",
        "tinkex.*",
        lambda event, measured, about, config: config.append((event, measured, about)),
        events,
    )
    yield events
    telemetry.detach("fault-tests")


def _of(heard: Heard, path: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        entry
        for entry in heard
        if entry[0].startswith("tinkex.http.request") and entry[2].get("path") == path
    ]


def test_a_retried_request_is_one_event_with_its_retries(
    server: LoopbackServer, connect: Connect, heard: Heard
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(503).times(2)
    heard.clear()

    training.optim_step(types.AdamParams()).result(20)

    (start, _, began), (stop, _, ended) = _of(heard, "/optim_step")
    assert (start, stop) == ("tinkex.http.request.start", "tinkex.http.request.stop")
    assert (began["model_id"], began["seq_id"]) == (training.model_id, 1)
    assert (ended["result"], ended["status"], ended["retry_count"]) == ("ok", 200, 2)
    retries = [
        measured["delay_ms"] for e, measured, _ in heard if e == "tinkex.retry.attempt.retry"
    ]
    assert retries == [500.0, 1000.0]


def test_a_poll_of_many_answers_is_one_event(
    server: LoopbackServer, connect: Connect, heard: Heard
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").not_ready().times(4)
    heard.clear()

    training.optim_step(types.AdamParams()).result(20)

    assert [event for event, _, _ in _of(heard, "/retrieve_future")] == [
        "tinkex.http.request.start",
        "tinkex.http.request.stop",
    ]


def test_a_refused_sample_is_an_error_event(
    server: LoopbackServer, connect: Connect, heard: Heard
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").reply(503)
    heard.clear()

    sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    _, (event, measured, about) = _of(heard, "/asample")
    assert event == "tinkex.http.request.stop"
    assert (about["result"], about["status"], about["retry_count"]) == ("error", 503, 0)
    assert measured["duration"] >= 0


def test_a_broken_connection_is_an_exception_event(
    server: LoopbackServer, connect: Connect, heard: Heard
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").drop_before_answer(is_reset=True)
    heard.clear()

    sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    _, (event, _, about) = _of(heard, "/asample")
    assert event == "tinkex.http.request.exception"
    assert about["kind"] == "APIConnectionError"
    assert about["reason"]


def test_a_handler_that_raises_is_never_felt(server: LoopbackServer, connect: Connect) -> None:
    calls = []

    def explode(*arguments: object) -> None:
        calls.append(arguments)
        raise RuntimeError("handler's own trouble")

    telemetry.attach("explosive", "tinkex.http.request.start", explode)
    try:
        sampling = connect().create_sampling_client(base_model=MODEL)
        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    finally:
        telemetry.detach("explosive")

    assert len(calls) == 1, "it is taken off after its first exception"


def test_no_event_carries_the_key_or_the_prompt(
    server: LoopbackServer, connect: Connect, heard: Heard
) -> None:
    service = connect(api_key="tml-very-secret")
    sampling = service.create_sampling_client(base_model=MODEL)
    server.on("asample").reply(400, json_body={"detail": "you sent tml-very-secret"})

    sampling.sample(types.ModelInput.from_ints([424242]), 1, PARAMS).outcome(20)

    assert heard
    assert "very-secret" not in repr(heard)
    assert "424242" not in repr(heard)
