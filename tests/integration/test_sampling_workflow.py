"""Sampling end to end: happy path, many at once, back-pressure and errors that surface as they are.

Against a real socket and through public names only. Sampling is never retried unless asked for:
every error test counts the requests.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.clock import FakeClock
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tests.support.numbers import logprob, sampled_tokens, top_tokens
from tinkex import RetryConfig, RetryPolicy, Runtime, ServiceClient, await_many, stream, types
from tinkex.errors import (
    APIConnectionError,
    APIStatusError,
    BadRequestError,
    InternalServerError,
    RateLimitError,
    RequestFailedError,
    UnprocessableEntityError,
)

MODEL = "tiny/model"
MANY = 50


def _prompt(number: int) -> types.ModelInput:
    return types.ModelInput.from_ints([number, number + 1])


def test_one_sample(server: LoopbackServer, connect: Connect) -> None:
    """R47-R50, R3: service, sampling client, sample, await."""
    sampling = connect().create_sampling_client(base_model=MODEL)

    response = sampling.sample(PROMPT, 2, PARAMS).result(timeout=20)

    expected = [sampled_tokens([1, 2, 3], 5, index, 4) for index in range(2)]
    assert [sequence.tokens for sequence in response.sequences] == expected
    assert response.sequences[0].logprobs == [logprob(t) for t in expected[0]]
    assert {sequence.stop_reason for sequence in response.sequences} == {"length"}
    assert len({sequence.sequence_id for sequence in response.sequences}) == 2
    assert server.count("asample") == 1


def test_one_sample_awaited(server: LoopbackServer, connect: Connect) -> None:
    """R50: `await` from a loop that is not the runtime's, three times over."""

    async def ask() -> list[list[int]]:
        sampling = await connect().create_sampling_client_async(base_model=MODEL)
        first = await sampling.sample_async(PROMPT, 1, PARAMS)
        handle = sampling.sample(PROMPT, 1, PARAMS)
        again = await handle
        return [r.sequences[0].tokens for r in (first, again, await handle)]

    expected = sampled_tokens([1, 2, 3], 5, 0, 4)
    assert asyncio.run(ask()) == [expected] * 3


def test_requested_logprobs_of_the_prompt_come_back(
    server: LoopbackServer, connect: Connect
) -> None:
    """R49: prompt logprobs, top-k of prompt and sample, and scores for chosen tokens."""
    sampling = connect().create_sampling_client(base_model=MODEL)

    response = sampling.sample(
        PROMPT,
        1,
        PARAMS,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=3,
    ).result(20)

    tokens = response.sequences[0].tokens
    assert response.prompt_logprobs == [None, logprob(2), logprob(3)]
    assert response.topk_prompt_logprobs == [top_tokens(t, 2) for t in (1, 2, 3)]
    assert response.sequences[0].topk_logprobs == [top_tokens(t, 3) for t in tokens]
    assert sampling.compute_logprobs(PROMPT).result(20) == [None, logprob(2), logprob(3)]


def test_what_travels(server: LoopbackServer, connect: Connect) -> None:
    """R12, R49: the request's fields, and the header that says we understand back-pressure."""
    sampling = connect().create_sampling_client(base_model=MODEL)
    sampling.sample(PROMPT, 2, types.SamplingParams(max_tokens=3, stop=["x"])).result(20)
    sampling.sample(PROMPT, 1, types.SamplingParams(stop=[])).result(20)

    first, second = (request.decoded for request in server.calls("asample"))
    assert (first["seq_id"], second["seq_id"]) == (0, 1)
    assert first["prompt"] == {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    assert first["sampling_params"]["stop"] == ["x"]
    assert "seed" not in first["sampling_params"]
    assert second["sampling_params"]["stop"] == []
    assert server.calls("asample")[0].headers["x-tinker-sampling-backpressure"] == "1"


def test_many_at_once_all_proceed(server: LoopbackServer, connect: Connect) -> None:
    """R10, R51, R52: without a 429 nothing is held back; 50 are on the server together."""
    server.hold("asample")
    sampling = connect().create_sampling_client(base_model=MODEL)

    handles = [sampling.sample(_prompt(number), 1, PARAMS) for number in range(MANY)]
    server.wait_for("asample", MANY)
    assert not any(handle.done() for handle in handles)
    server.release("asample")
    outcomes = await_many(handles, timeout=30)

    tokens = [outcome.unwrap().sequences[0].tokens for outcome in outcomes]
    assert tokens == [sampled_tokens([n, n + 1], 5, 0, 4) for n in range(MANY)]
    assert server.count("asample") == MANY


def test_a_bounded_stream_keeps_its_bound(server: LoopbackServer, connect: Connect) -> None:
    """R5, R51: never more than eight under way, results in the order of the items."""
    most = 0
    sampling = connect().create_sampling_client(base_model=MODEL)
    under_way: list = []

    def submit(number: int) -> object:
        nonlocal most
        handle = sampling.sample(_prompt(number), 1, PARAMS)
        under_way.append(handle)
        most = max(most, sum(not h.done() for h in under_way))
        return handle

    outcomes = list(stream(submit, range(MANY), max_in_flight=8))

    tokens = [outcome.unwrap().sequences[0].tokens for outcome in outcomes]
    assert tokens == [sampled_tokens([n, n + 1], 5, 0, 4) for n in range(MANY)]
    assert most <= 8


def test_the_registry_survives_concurrency(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    """R9, R55: one entry per client before, during and after 50 samples of five clients."""
    service = connect()
    clients = [service.create_sampling_client(base_model=MODEL) for _ in range(5)]
    registry = runtime.registry
    before = {client.client_id: registry.lookup(("config", client.client_id)) for client in clients}

    handles = [clients[number % 5].sample(_prompt(number), 1, PARAMS) for number in range(MANY)]
    assert all(outcome.ok for outcome in await_many(handles, timeout=30))

    after = {client.client_id: registry.lookup(("config", client.client_id)) for client in clients}
    assert len(before) == 5
    assert after == before
    assert all(entry is not None for entry in after.values())
    for client in clients:
        numbers = [
            request.decoded["seq_id"]
            for request in server.calls("asample")
            if request.decoded["sampling_session_id"] == client.sampling_session_id
        ]
        assert sorted(numbers) == list(range(10))


def test_a_server_error_surfaces_after_exactly_one_request(
    server: LoopbackServer, connect: Connect
) -> None:
    """R12, R14, R56: 5xx is an api_status error at once, not retried."""
    server.on("asample").reply(503, json_body={"detail": "away"})
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, InternalServerError)
    assert (outcome.error.type, outcome.error.status) == ("api_status", 503)
    assert server.count("asample") == 1
    assert server.count("retrieve_future") == 0


@pytest.mark.parametrize("status", [400, 429, 503])
def test_the_server_cannot_ask_for_a_retry_of_a_sample(
    server: LoopbackServer, connect: Connect, status: int
) -> None:
    """R12: `x-should-retry: true` makes no difference to the sampling call."""
    server.on("asample").reply(
        status, headers={"x-should-retry": "true"}, json_body={"detail": "again, please"}
    )
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, APIStatusError)
    assert outcome.error.status == status
    assert server.count("asample") == 1
    assert server.count("retrieve_future") == 0


def test_a_dropped_connection_surfaces_after_exactly_one_request(
    server: LoopbackServer, connect: Connect
) -> None:
    """R12: a sampling call whose connection ends without an answer is not sent again."""
    server.on("asample").drop_before_answer()
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, APIConnectionError)
    assert server.count("asample") == 1
    assert server.count("retrieve_future") == 0
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


@pytest.mark.parametrize(
    ("status", "kind"), [(400, BadRequestError), (422, UnprocessableEntityError)]
)
def test_a_user_error_surfaces_at_once(
    server: LoopbackServer, connect: Connect, status: int, kind: type[Exception]
) -> None:
    """R15, R58: a 4xx is a typed error that blames the request, after one request."""
    server.on("asample").reply(status, json_body={"detail": "prompt too long"})
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert type(outcome.error) is kind
    assert outcome.error.blame == "user"
    assert "prompt too long" in str(outcome.error)
    assert server.count("asample") == 1


def test_a_failed_sample_is_distinguished_from_a_refused_one(
    server: LoopbackServer, connect: Connect
) -> None:
    """R15: accepted and then failed: its category says whose turn it is; the next one works."""
    server.on("retrieve_future").failed("out of memory", "server")
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, RequestFailedError)
    assert outcome.error.category == "server"
    assert outcome.error.request_id is not None
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


@pytest.fixture
def still_clock() -> FakeClock:
    """A clock on which nothing passes by itself."""
    return FakeClock()


@pytest.mark.parametrize(
    ("headers", "asked_s"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "90000"}, 90.0),
        ({"retry-after": "7200"}, 7200.0),
    ],
)
def test_a_429_surfaces_and_closes_the_gate(
    server: LoopbackServer, still_clock: FakeClock, headers: dict[str, str], asked_s: float
) -> None:
    """R10-R13, R53, R54, R57: later calls do not reach the server until the deadline has passed,
    however far it is."""
    server.on("asample").reply(429, headers=headers)
    config = make_config(server)
    with Runtime(clock=still_clock) as runtime:
        sampling = ServiceClient(config=config, runtime=runtime).create_sampling_client(
            base_model=MODEL
        )
        limiter = runtime.registry.lookup(("limiter", config.tenant_key))
        assert limiter.backoff_until is None

        outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)
        assert isinstance(outcome.error, RateLimitError)
        assert outcome.error.retry_after_s == asked_s
        assert limiter.backoff_until == still_clock.monotonic() + asked_s
        assert server.count("asample") == 1

        sleepers = len(still_clock.sleeping)
        held = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(3)]
        still_clock.wait_for_sleepers(sleepers + len(held))
        still_clock.advance(asked_s - 0.5)
        with pytest.raises(TimeoutError):
            held[0].result(timeout=0.01)
        assert server.count("asample") == 1

        still_clock.advance(0.5)
        assert all(outcome.ok for outcome in await_many(held, timeout=20))
        assert server.count("asample") == 4
        assert limiter.backoff_until is None


def test_a_429_without_a_time_closes_no_gate(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    """R10: the limiter gates only after a 429 that says how long."""
    server.on("asample").reply(429)
    service = connect()
    sampling = service.create_sampling_client(base_model=MODEL)

    assert isinstance(sampling.sample(PROMPT, 1, PARAMS).outcome(20).error, RateLimitError)

    limiter = runtime.registry.lookup(("limiter", service.config.tenant_key))
    assert limiter.backoff_until is None
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    assert server.count("asample") == 2


def test_with_a_retry_policy_the_same_number_is_sent_again(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    """R13, R61: with retry=RetryPolicy(...) the same number is sent again until it is accepted."""
    server.on("asample").reply(429, headers={"retry-after-ms": "50"})
    server.on("asample").reply(503)
    sampling = connect().create_sampling_client(base_model=MODEL, retry=RetryPolicy(max_retries=5))

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    assert [request.decoded["seq_id"] for request in server.calls("asample")] == [0, 0, 0]
    assert any(slept == pytest.approx(0.05) for slept in clock.sleeps)


def test_with_the_setting_samples_are_retried_unless_a_call_says_how(
    server: LoopbackServer, connect: Connect
) -> None:
    """A busy server is waited for, as the official client waits."""
    service = connect(retry_samples=True)
    training = service.create_lora_training_client(MODEL, rank=8)
    for sampling in (
        service.create_sampling_client(base_model=MODEL),
        training.save_weights_and_get_sampling_client(),
    ):
        server.on("asample").reply(429).times(3)
        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    server.on("asample").reply(429)
    once = service.create_sampling_client(base_model=MODEL, retry=RetryPolicy(max_retries=0))
    assert isinstance(once.sample(PROMPT, 1, PARAMS).outcome(20).error, RateLimitError)


def test_retries_end_after_max_retries(server: LoopbackServer, connect: Connect) -> None:
    """R13: max_retries is a bound: three tries in all, then the error as it is."""
    server.on("asample").reply(503).always()
    sampling = connect().create_sampling_client(base_model=MODEL, retry=RetryPolicy(max_retries=2))

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert isinstance(outcome.error, InternalServerError)
    assert server.count("asample") == 3


@pytest.mark.parametrize("retries", [True, False])
def test_a_client_has_no_more_samples_under_way_than_its_max_connections(
    server: LoopbackServer, connect: Connect, retries: bool
) -> None:
    """The official SDK's bound, also where its retries are switched off."""
    server.hold("asample")
    config = RetryConfig(max_connections=3, enable_retry_logic=retries)
    sampling = connect().create_sampling_client(base_model=MODEL, retry_config=config)
    handles = [sampling.sample(_prompt(number), 1, PARAMS) for number in range(10)]
    server.wait_for("retrieve_future", 3)
    assert server.count("asample") == 3
    server.release("asample")
    assert all(outcome.ok for outcome in await_many(handles, timeout=30))
    assert server.count("asample") == 10


def test_errors_among_many_touch_only_themselves(server: LoopbackServer, connect: Connect) -> None:
    """R49, R51, R56: of 50 concurrent samples the five that met a 500 fail, the rest succeed."""
    server.on("asample").reply(500).when(lambda body: body["seq_id"] % 10 == 3).times(5)
    sampling = connect().create_sampling_client(base_model=MODEL)

    outcomes = await_many(
        [sampling.sample(_prompt(number), 1, PARAMS) for number in range(MANY)], timeout=30
    )

    failed = [number for number, outcome in enumerate(outcomes) if not outcome.ok]
    assert failed == [3, 13, 23, 33, 43]
    assert server.count("asample") == MANY
