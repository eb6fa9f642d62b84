"""Connections that break at every point of an exchange: the work is done once, and is not lost.

Each test counts the requests, so that neither a storm of retries nor a double application could
pass, and reads from the server what was applied and in which order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.faults import Rule
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import RetryPolicy, types
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    InternalServerError,
    UnprocessableEntityError,
    ValidationError,
)

MODEL = "tiny/model"
LENGTHS = (3, 4, 5)
LOSSES: dict[str, Callable[[Rule], Rule]] = {
    "cut before the body": lambda rule: rule.drop_before_body(),
    "reset before the body": lambda rule: rule.drop_before_body(is_reset=True),
    "cut after the request": lambda rule: rule.drop_before_answer(),
    "reset after the request": lambda rule: rule.drop_before_answer(is_reset=True),
    "applied, then cut": lambda rule: rule.apply_then_drop(),
    "applied, then reset": lambda rule: rule.apply_then_drop(is_reset=True),
    "cut after the headers": lambda rule: rule.drop_after_headers(),
    "cut inside the body": lambda rule: rule.truncate_body(5),
    "reset inside the body": lambda rule: rule.truncate_body(5, is_reset=True),
    "cut inside a chunk": lambda rule: rule.truncate_chunks(10),
    "cut before the last chunk": lambda rule: rule.truncate_chunks(20),
    "502 with HTML": lambda rule: rule.html_502(),
    "applied, then 502": lambda rule: rule.apply_then_reply(502, body="<html>bad gateway</html>"),
    "empty 400 of a proxy": lambda rule: rule.empty_400(),
}
lost = pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())


@lost
@pytest.mark.parametrize("route", ["forward_backward", "optim_step", "save_weights"])
def test_a_training_request_whose_answer_is_lost_is_applied_once(
    server: LoopbackServer,
    connect: Connect,
    clock: FakeClock,
    route: str,
    lose: Callable[[Rule], Rule],
) -> None:
    server.service.flags["fwdbwd_max_chunk_len"] = 1
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    clock.sleeps.clear()
    rule = lose(server.on(route)).times(2)

    passed = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY)
    stepped = training.optim_step(types.AdamParams())
    saved = training.save_state("one")

    assert passed.result(20).metrics["loss:sum"] == loss_of(LENGTHS)
    metrics = stepped.result(20).metrics
    assert metrics is not None
    assert metrics["gradients"] == 3.0
    assert saved.result(20).path == f"tinker://{training.model_id}/weights/one"
    assert server.applied() == [
        (1, "forward_backward"),
        (2, "forward_backward"),
        (3, "forward_backward"),
        (4, "optim_step"),
        (5, "save_weights"),
    ]
    proper = 3 if route == "forward_backward" else 1
    assert rule.hits == 2
    assert server.count(route) == proper + 2
    assert len([s for s in clock.sleeps if s >= 0.5]) == 2, "each retry waits its turn"


@lost
def test_a_poll_whose_answer_is_lost_is_sent_again(
    server: LoopbackServer, connect: Connect, lose: Callable[[Rule], Rule]
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    lose(server.on("retrieve_future")).times(2)

    output = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).result(20)

    assert output.metrics["loss:sum"] == loss_of(LENGTHS)
    assert server.count("retrieve_future") - polls == 3
    assert server.count("forward_backward") == 1
    assert server.applied() == [(1, "forward_backward")]


@lost
def test_a_sample_whose_answer_is_lost_is_an_error_after_one_request(
    server: LoopbackServer, connect: Connect, lose: Callable[[Rule], Rule]
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    lose(server.on("asample"))

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert outcome.error is not None
    assert outcome.error.type in ("api_connection", "api_status")
    assert server.count("asample") == 1
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


@lost
def test_a_sample_with_retries_is_sampled_once(
    server: LoopbackServer, connect: Connect, lose: Callable[[Rule], Rule]
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL, retry=RetryPolicy())
    lose(server.on("asample")).times(2)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    (sampler,) = server.service.world.samplers.values()
    assert sampler.seq_ids == [0]
    numbers = {request.decoded["seq_id"] for request in server.calls("asample") if request.decoded}
    assert numbers == {0}
    assert server.count("asample") == 3


@lost
def test_a_model_is_created_once(
    server: LoopbackServer, connect: Connect, lose: Callable[[Rule], Rule]
) -> None:
    lose(server.on("create_model")).times(2)

    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    assert list(server.service.world.models) == [training.model_id]
    assert server.count("create_model") == 3


@pytest.mark.parametrize("route", ["client_config", "create_session", "create_sampling_session"])
def test_the_way_to_a_sampling_client_survives_a_broken_connection(
    server: LoopbackServer, connect: Connect, route: str
) -> None:
    server.on(route).apply_then_drop(is_reset=True)

    sampling = connect().create_sampling_client(base_model=MODEL)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    assert server.count(route) == 2


def test_a_lost_answer_keeps_its_number_and_its_idempotency_key(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").apply_then_drop().times(3)

    training.optim_step(types.AdamParams()).result(20)

    sent = server.calls("optim_step")
    assert {request.decoded["seq_id"] for request in sent} == {1}
    assert len({request.headers["x-idempotency-key"] for request in sent}) == 1
    assert len({request.body for request in sent}) == 1


def test_a_server_that_stays_away_is_given_up_without_a_storm(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").html_502().always()
    began = clock.monotonic()

    outcome = training.optim_step(types.AdamParams()).outcome(30)

    assert isinstance(outcome.error, InternalServerError)
    assert "HTML" in outcome.error.message
    assert 60 < clock.monotonic() - began < 600
    assert 10 <= server.count("optim_step") <= 60, "about one request in ten seconds"
    assert server.applied() == []


def test_a_closed_port_is_an_error_that_names_the_server(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect(retry_budget_s=3.0)
    server.stop()

    with pytest.raises(APIConnectionError) as caught:
        service.create_sampling_client(base_model=MODEL)

    assert server.url in str(caught.value)
    assert caught.value.retryable


def test_an_answer_that_is_no_json_is_a_typed_error_and_nothing_hangs(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(200, body="<html>welcome to the wifi</html>")
    server.on("optim_step").reply(200, json_body={"no": "request id"})

    outcomes = [training.optim_step(types.AdamParams()).outcome(20) for _ in range(2)]

    assert [type(outcome.error) for outcome in outcomes] == [APIResponseValidationError] * 2
    assert server.count("optim_step") == 2


def test_a_result_that_is_no_result_is_a_typed_error(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    protobuf = {"Content-Type": "application/x-protobuf"}
    server.on("retrieve_future").reply(200, headers=protobuf, body=b"\xff\xff\xff")
    server.on("retrieve_future").reply(200, json_body={"loss_fn_outputs": []})
    server.on("retrieve_future").reply(200, body="not json")

    outcomes = [
        training.forward_backward(make_data([3]), CROSS_ENTROPY).outcome(20) for _ in range(3)
    ]

    assert [type(outcome.error) for outcome in outcomes] == [APIResponseValidationError] * 3
    assert training.optim_step(types.AdamParams()).outcome(20).ok


def test_one_refused_chunk_fails_the_batch_and_the_model_goes_on(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["fwdbwd_max_chunk_len"] = 1
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("forward_backward").reply(422, json_body={"detail": "bad datum"}).when(
        lambda body: body.seq_id == 2
    )

    outcome = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).outcome(20)

    assert isinstance(outcome.error, UnprocessableEntityError)
    assert training.optim_step(types.AdamParams()).outcome(20).ok
    assert server.applied() == [
        (1, "forward_backward"),
        (3, "forward_backward"),
        (4, "optim_step"),
    ]


def test_what_cannot_be_encoded_takes_no_number(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    unusable: dict[str, Any] = {"clip_low_threshold": object()}
    with pytest.raises(ValidationError, match="clip_low_threshold"):
        training.forward_backward(make_data([3]), "ppo", unusable).result(10)

    assert training.optim_step(types.AdamParams()).outcome(20).ok
    assert server.applied() == [(1, "optim_step")]
