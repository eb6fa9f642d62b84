"""Answers that are slow, doubled, out of order, compressed or stalled: read for what they are."""

from __future__ import annotations

import time

import pytest

from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.support.numbers import sampled_tokens
from tinkex import Runtime, as_completed, await_many, types
from tinkex.errors import APIResponseValidationError, AuthenticationError

MODEL = "tiny/model"
MANY = 12


def _prompt(number: int) -> types.ModelInput:
    return types.ModelInput.from_ints([number, number + 1])


def _tokens(number: int) -> list[int]:
    return sampled_tokens([number, number + 1], 5, 0, 4)


def test_a_doubled_answer_never_becomes_the_answer_to_something_else(
    server: LoopbackServer, connect: Connect
) -> None:
    """The second copy arrives on a connection that is about to carry another request."""
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").duplicate().always()
    server.on("retrieve_future").duplicate().always()

    found = [sampling.sample(_prompt(n), 1, PARAMS).outcome(20) for n in range(MANY)]

    assert [outcome.unwrap().sequences[0].tokens for outcome in found] == [
        _tokens(n) for n in range(MANY)
    ]
    assert server.count("asample") == MANY


def test_doubled_training_answers_apply_nothing_twice(
    server: LoopbackServer, connect: Connect
) -> None:
    server.on("forward_backward").duplicate().always()
    server.on("optim_step").duplicate().always()
    server.on("retrieve_future").duplicate().always()
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    losses = []
    for _ in range(4):
        passed = training.forward_backward(make_data([3]), CROSS_ENTROPY)
        training.optim_step(types.AdamParams()).result(20)
        losses.append(passed.result(20).metrics["loss:sum"])

    assert losses == [loss_of([3], step) for step in range(4)]
    assert [seq_id for seq_id, _ in server.applied()] == list(range(1, 9))
    assert (server.count("forward_backward"), server.count("optim_step")) == (4, 4)


def test_promises_answered_in_reverse_keep_their_owners(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("asample").reorder(MANY)

    outcomes = await_many([sampling.sample(_prompt(n), 1, PARAMS) for n in range(MANY)], 20)

    assert [outcome.unwrap().sequences[0].tokens for outcome in outcomes] == [
        _tokens(n) for n in range(MANY)
    ]


def test_results_that_come_in_reverse_keep_their_owners(
    server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("retrieve_future").reorder(MANY)

    handles = [sampling.sample(_prompt(n), 1, PARAMS) for n in range(MANY)]
    finished = [handles.index(handle) for handle in as_completed(handles, timeout=20)]

    assert sorted(finished) == list(range(MANY))
    tokens = [handle.result(0).sequences[0].tokens for handle in handles]
    assert tokens == [_tokens(n) for n in range(MANY)]


def test_chunks_whose_results_come_in_reverse_are_combined_in_order(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["fwdbwd_max_chunk_len"] = 1
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("retrieve_future").reorder(5)

    output = training.forward_backward(make_data([3, 4, 5, 6, 7]), CROSS_ENTROPY).result(20)

    assert [len(entry["logprobs"].tolist()) for entry in output.loss_fn_outputs] == [3, 4, 5, 6, 7]
    assert output.metrics["seq:unique"] == 1


def test_a_slow_answer_that_keeps_coming_is_let_through(
    server: LoopbackServer, connect: Connect
) -> None:
    """1 kB/s: a body takes longer than the silence that is allowed, but is never silent."""
    training = connect(timeout_s=0.15, poll_timeout_s=0.15).create_lora_training_client(
        base_model=MODEL, rank=8
    )
    polls = server.count("retrieve_future")
    server.on("retrieve_future").slow(bytes_per_s=1000)

    output = training.forward_backward(make_data([60]), CROSS_ENTROPY).result(20)

    assert output.metrics["loss:sum"] == loss_of([60])
    assert server.count("retrieve_future") - polls == 1


def test_a_request_without_a_response_is_sent_again(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect(timeout_s=0.1).create_lora_training_client(base_model=MODEL, rank=8)
    silent = server.on("optim_step").hold()

    stepped = training.optim_step(types.AdamParams()).outcome(20)

    silent.release()
    assert stepped.ok
    assert server.count("optim_step") == 2
    assert server.applied() == [(1, "optim_step")]


def test_an_unexpected_100_continue_and_a_stall_delay_only_their_own_request(
    server: LoopbackServer, connect: Connect
) -> None:
    """The interim answer is not the answer; other requests do not wait behind it."""
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    sampling = service.create_sampling_client(base_model=MODEL)
    stalled = server.on("optim_step").stall_100_continue()

    stepped = training.optim_step(types.AdamParams())
    server.wait_for("optim_step")
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    assert not stepped.done()
    stalled.release()

    assert stepped.outcome(20).ok
    assert server.count("optim_step") == 1
    assert server.applied() == [(1, "optim_step")]


def test_a_stall_after_100_continue_ends_by_timeout_and_is_not_applied_twice(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect(timeout_s=0.1).create_lora_training_client(base_model=MODEL, rank=8)
    stalled = server.on("optim_step").stall_100_continue()

    # Well below the limit of a whole answer, which is thirty times that of silence.
    stepped = training.optim_step(types.AdamParams()).outcome(2)

    stalled.release()
    assert stepped.ok
    assert server.count("optim_step") == 2
    assert server.applied() == [(1, "optim_step")]


def test_no_request_waits_for_a_100_continue(server: LoopbackServer, connect: Connect) -> None:
    """A proxy that swallows `Expect` would stall every upload: ours never sends it."""
    server.on("forward_backward").withhold_continue().always()
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    training.forward_backward(make_data([200] * 200), CROSS_ENTROPY).result(20)

    assert not any("expect" in request.headers for request in server.requests)


@pytest.mark.parametrize("route", ["optim_step", "retrieve_future", "asample", "client_config"])
def test_compressed_answers_are_read(server: LoopbackServer, connect: Connect, route: str) -> None:
    server.on(route).gzipped().always()
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data([30]), CROSS_ENTROPY).result(20)
    training.optim_step(types.AdamParams()).result(20)
    sampled = service.create_sampling_client(base_model=MODEL).sample(PROMPT, 1, PARAMS).result(20)

    assert output.metrics["loss:sum"] == loss_of([30])
    assert sampled.sequences[0].tokens == sampled_tokens([1, 2, 3], 5, 0, 4)


@pytest.mark.parametrize("route", ["optim_step", "retrieve_future", "asample", "client_config"])
def test_answers_in_chunks_are_read(server: LoopbackServer, connect: Connect, route: str) -> None:
    server.on(route).chunked().always()
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data([30]), CROSS_ENTROPY).result(20)
    training.optim_step(types.AdamParams()).result(20)
    sampled = service.create_sampling_client(base_model=MODEL).sample(PROMPT, 1, PARAMS).result(20)

    assert output.metrics["loss:sum"] == loss_of([30])
    assert sampled.sequences[0].tokens == sampled_tokens([1, 2, 3], 5, 0, 4)


def test_a_held_poll_is_one_request_however_long_it_takes(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.hold("optim_step")

    stepped = training.optim_step(types.AdamParams())
    server.wait_for("retrieve_future", polls + 1)
    time.sleep(0.05)
    server.release("optim_step")

    assert stepped.outcome(20).ok
    assert server.count("retrieve_future") - polls == 1


def test_connections_closed_without_a_word_are_replaced(
    server: LoopbackServer, connect: Connect
) -> None:
    for route in ("forward_backward", "optim_step", "retrieve_future"):
        server.on(route).close_after().always()
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    for step in range(5):
        passed = training.forward_backward(make_data([3]), CROSS_ENTROPY)
        training.optim_step(types.AdamParams())
        assert passed.result(20).metrics["loss:sum"] == loss_of([3], step)

    assert [seq_id for seq_id, _ in server.applied()][:9] == list(range(1, 10))
    assert server.count("forward_backward") <= 10, "at most one retry each"


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_server_is_followed_with_the_key(
    server: LoopbackServer, connect: Connect, status: int
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(status, headers={"Location": "/moved/api/v1/optim_step"})

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    first, second = server.calls("optim_step")
    assert second.target == "/moved/api/v1/optim_step"
    assert second.headers["x-api-key"] == first.headers["x-api-key"] == "tml-a"
    assert second.body == first.body


def test_a_request_with_a_body_is_not_redirected_to_another_server(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    with LoopbackServer() as elsewhere:
        target = f"{elsewhere.url}/api/v1/optim_step"
        server.on("optim_step").reply(307, headers={"Location": target})

        outcome = training.optim_step(types.AdamParams()).outcome(20)

        assert isinstance(outcome.error, APIResponseValidationError)
        assert "another origin" in outcome.error.message
        assert elsewhere.requests == []


def test_redirects_in_a_circle_end(server: LoopbackServer, connect: Connect) -> None:
    training = connect(retry_budget_s=1.0).create_lora_training_client(base_model=MODEL, rank=8)
    server.on("get_info").reply(307, headers={"Location": "/api/v1/get_info"}).always()

    with pytest.raises(APIResponseValidationError, match="redirects"):
        training.get_info()

    assert server.count("get_info") == 5


@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=utf-8", "none"])
def test_json_is_read_with_any_content_type(
    server: LoopbackServer, connect: Connect, kind: str
) -> None:
    headers = {} if kind == "none" else {"Content-Type": kind}
    server.on("client_config").reply(200, headers=headers, body='{"fwdbwd_max_chunk_len": 1}')
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    training.forward_backward(make_data([3, 4]), CROSS_ENTROPY).result(20)

    assert server.count("forward_backward") == 2


def test_a_server_may_live_under_a_path(server: LoopbackServer, connect: Connect) -> None:
    service = connect(base_url=f"{server.url}/services/tinker-prod/")
    sampling = service.create_sampling_client(base_model=MODEL)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    prefix = "/services/tinker-prod/api/v1/"
    assert all(request.target.startswith(prefix) for request in server.requests)


def test_a_wrong_key_fails_at_once_and_is_named_nowhere(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The server echoes the key in its answer; the error and the log do not."""
    server.on("client_config").reply(401, json_body={"detail": "unknown key tml-secret-key"})
    service = connect(api_key="tml-secret-key")

    with caplog.at_level("DEBUG"), pytest.raises(AuthenticationError) as caught:
        service.create_sampling_client(base_model=MODEL)

    assert server.count("client_config") == 1
    assert "secret" not in f"{caught.value!s} {caught.value!r} {caught.value.__dict__}"
    assert "secret" not in caplog.text
    assert "secret" not in repr(service) + repr(service.config)


def test_work_leaves_nothing_behind(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    """After hundreds of operations there are as many tasks and entries as before."""
    service = connect()
    sampling = service.create_sampling_client(base_model=MODEL)
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    tasks, entries = runtime.num_tasks, len(runtime.registry.keys())
    handles: list = [sampling.sample(_prompt(n), 1, PARAMS) for n in range(200)]
    handles += [training.optim_step(types.AdamParams()) for _ in range(50)]

    assert all(outcome.ok for outcome in await_many(handles, 30))

    server.wait_until(lambda: runtime.num_tasks == tasks)
    assert len(runtime.registry.keys()) == entries
