"""Samplers in other processes, behind shared polls, and behind tokens instead of keys."""

from __future__ import annotations

import pickle

import pytest

from tests.support.clock import FakeClock
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tests.support.numbers import sampled_tokens
from tinkex import Runtime, SamplingClient, await_many, default_runtime, types

MODEL = "tiny/model"
TOKEN_EXPIRES = 4_000_000_000
EXPECTED = sampled_tokens([1, 2, 3], 5, 0, 4)


@pytest.mark.parametrize("joins", [True, False])
def test_a_handle_makes_a_clone_with_numbers_of_its_own(
    server: LoopbackServer, connect: Connect, runtime: Runtime, joins: bool
) -> None:
    server.service.flags["sample_join_sampling_session"] = joins
    original = connect().create_sampling_client(base_model=MODEL)
    original.sample(PROMPT, 1, PARAMS).result(20)
    handle = original.get_sampler_handle()

    clone = SamplingClient.from_sampler_handle(handle, config=make_config(server), runtime=runtime)

    assert "tml-" not in handle
    assert clone.sample(PROMPT, 1, PARAMS).result(20).sequences[0].tokens == EXPECTED
    assert original.sample(PROMPT, 1, PARAMS).result(20).sequences[0].tokens == EXPECTED
    (sampler,) = server.service.world.samplers.values()
    first, cloned, second = sampler.seq_ids
    assert (first, second) == (0, 1)
    assert cloned >= 1_000_000_000
    assert server.count("join_sampling_session") == (1 if joins else 0)


def test_a_sampler_survives_pickling(server: LoopbackServer, connect: Connect) -> None:
    original = connect().create_sampling_client(base_model=MODEL)
    try:
        clone = pickle.loads(pickle.dumps(original))
        tokens = clone.sample(PROMPT, 1, PARAMS).result(20).sequences[0].tokens
    finally:
        default_runtime().stop()

    assert tokens == EXPECTED
    assert server.count("create_session") == 1


def test_shared_polls_carry_many_samples(server: LoopbackServer, connect: Connect) -> None:
    """One long poll per sampler says what is ready; each result is then fetched once."""
    server.service.flags["sample_use_retrieve_futures"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")

    prompts = [types.ModelInput.from_ints([n, n]) for n in range(40)]
    handles = [sampling.sample(prompt, 1, PARAMS) for prompt in prompts]
    server.wait_for("asample", 40)
    assert server.count("retrieve_future") == 0
    server.release("asample")
    outcomes = await_many(handles, timeout=30)

    tokens = [outcome.unwrap().sequences[0].tokens for outcome in outcomes]
    assert tokens == [sampled_tokens([n, n], 5, 0, 4) for n in range(40)]
    assert server.count("retrieve_future") == 40
    assert server.count("retrieve_futures") < 40


def test_a_shared_poll_that_breaks_is_sent_again(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["sample_use_retrieve_futures"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("retrieve_futures").drop_before_answer(is_reset=True)
    server.on("retrieve_futures").html_502()
    server.on("retrieve_futures").truncate_body(3)

    assert sampling.sample(PROMPT, 1, PARAMS).result(20).sequences[0].tokens == EXPECTED

    assert server.count("retrieve_futures") == 4
    assert server.count("asample") == 1


def test_a_shared_poll_that_is_refused_fails_its_samples_and_not_later_ones(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["sample_use_retrieve_futures"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("retrieve_futures").reply(403, json_body={"detail": "no"})

    outcome = sampling.sample(PROMPT, 1, PARAMS).outcome(20)

    assert outcome.error is not None
    assert outcome.error.code == "forbidden"
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


def test_a_key_is_exchanged_for_a_token_when_the_server_requires_it(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["pjwt_auth_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok

    keys = [(request.route, request.headers["x-api-key"]) for request in server.requests]
    assert [route for route, key in keys if key == "tml-a"] == ["client_config", "auth_token"]
    assert all(key.startswith("eyJ") for _, key in keys[2:])


def test_a_token_is_renewed_without_falling_back_to_the_key(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    """While the renewal is under way, other requests go on with the token they have."""
    server.service.flags["pjwt_auth_enabled"] = True
    sampling = connect().create_sampling_client(base_model=MODEL)
    renewal = server.on("auth_token").hold()
    clock.wait_for_sleepers(3)

    clock.advance(TOKEN_EXPIRES - clock.time() - 300)
    server.wait_for("auth_token", 2)
    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    renewal.release()

    assert server.calls("auth_token")[1].headers["x-api-key"] == "tml-a"
    assert server.calls("asample")[0].headers["x-api-key"].startswith("eyJ")


def test_a_server_without_dynamic_config_is_fine(server: LoopbackServer, connect: Connect) -> None:
    server.on("dynamic_config").reply(404).always()

    assert connect().create_sampling_client(base_model=MODEL).sampling_session_id

    assert server.count("dynamic_config") == 1
