"""What a poll may answer: gone, failed, unknown, paused; and who is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import RetryPolicy, Runtime, telemetry, types
from tinkex.errors import (
    APIStatusError,
    NotFoundError,
    PermissionDeniedError,
    PromiseLostError,
    RequestFailedError,
)

MODEL = "tiny/model"


def test_a_lost_promise_is_not_sent_again_by_itself(
    server: LoopbackServer, connect: Connect
) -> None:
    """It is unknown whether it was applied: the caller decides."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").reply(410, json_body={"detail": "gone"})

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert isinstance(outcome.error, PromiseLostError)
    assert outcome.error.request_id is not None
    assert server.count("retrieve_future") - polls == 1
    assert server.count("optim_step") == 1
    assert training.optim_step(types.AdamParams()).outcome(20).ok


def test_a_lost_sample_is_an_error_without_a_retry_policy(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("retrieve_future").reply(410)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, PromiseLostError)
    assert server.count("asample") == 1


def test_with_retries_a_lost_sample_is_requested_again(
    server: LoopbackServer, connect: Connect
) -> None:
    """The old number stands for the lost promise, so the new request has a new one."""
    sampling = connect().create_sampling_client(base_model=MODEL, retry=RetryPolicy())
    server.on("retrieve_future").reply(410)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    numbers = [request.decoded["seq_id"] for request in server.calls("asample")]
    assert len(numbers) == 2
    assert len(set(numbers)) == 2


@pytest.mark.parametrize("category", ["user", "server", "unknown"])
def test_a_failed_request_keeps_its_category(
    server: LoopbackServer, connect: Connect, category: str
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").failed("exploded", category)

    outcome = training.forward_backward(make_data([3]), CROSS_ENTROPY).outcome(20)

    assert isinstance(outcome.error, RequestFailedError)
    assert (outcome.error.category, outcome.error.message) == (category, "exploded")
    assert server.count("retrieve_future") - polls == 1


@pytest.mark.parametrize(
    "body", [{"error": None}, {"error": "x", "category": "martian"}, {"error": {"nested": 1}}]
)
def test_the_key_error_means_failure_with_any_value(
    server: LoopbackServer, connect: Connect, body: dict[str, Any]
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").reply(200, json_body=body)

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert isinstance(outcome.error, RequestFailedError)
    assert outcome.error.category == "unknown"


@pytest.mark.parametrize(("status", "kind"), [(404, NotFoundError), (403, PermissionDeniedError)])
def test_a_final_status_ends_the_wait_at_once(
    server: LoopbackServer, connect: Connect, status: int, kind: type[APIStatusError]
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").reply(status, json_body={"detail": "no"})

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert type(outcome.error) is kind
    assert server.count("retrieve_future") - polls == 1


def test_a_persistent_400_is_final_after_a_few_tries(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").reply(400, json_body={"detail": "what?"}).always()

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert outcome.error is not None
    assert outcome.error.code == "bad-request"
    assert server.count("retrieve_future") - polls <= 5


def test_empty_400_of_a_proxy_between_polls_pass(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").empty_400().times(10)

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert server.count("retrieve_future") - polls == 11
    server.on("retrieve_future").empty_400().always()
    outcome = training.optim_step(types.AdamParams()).outcome(20)
    assert outcome.error is not None
    assert outcome.error.code == "bad-request"
    assert server.count("retrieve_future") - polls == 11 + 17


def test_one_failed_chunk_fails_the_batch_and_no_wait_is_left_behind(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.service.flags["fwdbwd_max_chunk_len"] = 1
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    idle = runtime.num_tasks
    server.hold("forward_backward")
    server.on("retrieve_future").failed("bad chunk")

    outcome = training.forward_backward(make_data([3, 4, 5]), CROSS_ENTROPY).outcome(20)

    assert isinstance(outcome.error, RequestFailedError)
    server.wait_until(lambda: runtime.num_tasks == idle)
    server.release("forward_backward")


QUEUE = "tinkex.queue.state_change"


def test_queue_states_are_reported_on_transitions_only(
    server: LoopbackServer, connect: Connect
) -> None:
    """Five polls say "paused" and two "active": an observer and telemetry hear two changes."""
    heard: list[dict[str, Any]] = []
    seen: list[tuple[str, str | None]] = []
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    training.queue_observer = lambda queue: seen.append((queue.state, queue.reason))
    server.on("retrieve_future").not_ready("paused_capacity", "busy day").times(3)
    server.on("retrieve_future").try_again("paused_capacity", "busy day").times(2)
    server.on("retrieve_future").not_ready("active").times(2)
    telemetry.attach("queue", QUEUE, lambda e, m, about, config: config.append(about), heard)
    try:
        assert training.optim_step(types.AdamParams()).outcome(20).ok
    finally:
        telemetry.detach("queue")

    assert seen == [("paused_capacity", "busy day"), ("active", None)]
    assert [about["queue_state"] for about in heard] == ["paused_capacity", "active"]
    assert heard[0]["queue_state_reason"] == "busy day"
    assert heard[0]["model_id"] == training.model_id
    assert heard[0]["request_id"]


def test_a_samplers_observer_is_called_and_telemetry_is_not(
    server: LoopbackServer, connect: Connect
) -> None:
    heard: list[dict[str, Any]] = []
    seen: list[str] = []
    sampling = connect().create_sampling_client(base_model=MODEL)
    sampling.queue_observer = lambda queue: seen.append(queue.state)
    server.on("retrieve_future").not_ready("paused_rate_limit", "slow down").times(3)
    telemetry.attach("queue", QUEUE, lambda e, m, about, config: config.append(about), heard)
    try:
        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    finally:
        telemetry.detach("queue")

    assert seen == ["paused_rate_limit"]
    assert heard == []


def test_an_observer_that_raises_has_no_effect(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    def explode(queue: object) -> None:
        raise RuntimeError("observer's own trouble")

    training.queue_observer = explode
    server.on("retrieve_future").not_ready("paused_rate_limit")

    assert training.optim_step(types.AdamParams()).outcome(20).ok


def test_a_pause_is_warned_of_once(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").not_ready("paused_capacity", "busy day").times(5)

    with caplog.at_level("WARNING", logger="tinkex"):
        assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert sum("busy day" in record.getMessage() for record in caplog.records) == 1


FAILURES = {
    "request_failed": lambda rule: rule.failed("no"),
    "api_error": lambda rule: rule.reply(404),
    "validation_error": lambda rule: rule.reply(200, body="not json"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_end_of_a_wait_is_reported_with_its_reason(
    server: LoopbackServer, connect: Connect, name: str
) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    FAILURES[name](server.on("retrieve_future"))
    telemetry.attach(
        "ends", "tinkex.future.*", lambda e, m, about, config: config.append((e, about)), heard
    )
    try:
        assert not training.optim_step(types.AdamParams()).outcome(20).ok
    finally:
        telemetry.detach("ends")

    assert [event for event, _ in heard] == [f"tinkex.future.{name}"]
    assert heard[0][1]["request_type"] == "OptimStep"
