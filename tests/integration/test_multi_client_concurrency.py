"""Two tenants in one process: they train and sample at once and never feel each other.

Two ServiceClients with different keys (and, in some tests, different servers) share one runtime;
120 samples run while both train. Retry and no-retry are seen side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import make_config
from tests.support.loopback import LoopbackServer
from tests.support.numbers import sampled_tokens
from tinkex import Config, Runtime, ServiceClient, await_many, stream, telemetry, types
from tinkex.errors import InternalServerError, NotFoundError, RateLimitError

MODEL = "tiny/model"
SAMPLES_EACH = 60


class Tenant(NamedTuple):
    """One client with a server of its own."""

    server: LoopbackServer
    config: Config
    service: ServiceClient


@pytest.fixture
def tenants(runtime: Runtime) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants with different servers and keys on one started runtime."""
    with LoopbackServer() as first, LoopbackServer() as second:
        yield _tenant(first, "tml-a", runtime), _tenant(second, "tml-b", runtime)


def _tenant(server: LoopbackServer, key: str, runtime: Runtime) -> Tenant:
    config = make_config(server, api_key=key)
    return Tenant(server, config, ServiceClient(config=config, runtime=runtime))


def _train(tenant: Tenant, steps: int, losses: list[float]) -> None:
    training = tenant.service.create_lora_training_client(base_model=MODEL, rank=8)
    handles = []
    for _ in range(steps):
        handles.append(training.forward_backward(make_data([3, 4, 5]), CROSS_ENTROPY))
        training.optim_step(types.AdamParams())
    losses += [outcome.unwrap().metrics["loss:sum"] for outcome in await_many(handles, 30)]


def _sample(tenant: Tenant, tokens: list[list[int]]) -> None:
    sampling = tenant.service.create_sampling_client(base_model=MODEL)
    prompts = (types.ModelInput.from_ints([n, n]) for n in range(SAMPLES_EACH))
    for outcome in stream(lambda p: sampling.sample(p, 1, PARAMS), prompts, max_in_flight=30):
        tokens.append(outcome.unwrap().sequences[0].tokens)


def test_two_tenants_train_and_sample_at_once(tenants: tuple[Tenant, Tenant]) -> None:
    """R62-R64, R71, R77: 120 samples and eight steps, each tenant's numbers its own and whole."""
    losses: dict[int, list[float]] = {0: [], 1: []}
    tokens: dict[int, list[list[int]]] = {0: [], 1: []}
    work = [
        threading.Thread(target=function, args=arguments)
        for number, tenant in enumerate(tenants)
        for function, arguments in (
            (_train, (tenant, 4, losses[number])),
            (_sample, (tenant, tokens[number])),
        )
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(60)

    expected = [sampled_tokens([n, n], 5, 0, 4) for n in range(SAMPLES_EACH)]
    for number, tenant in enumerate(tenants):
        assert losses[number] == [loss_of([3, 4, 5], step) for step in range(4)]
        assert tokens[number] == expected
        assert tenant.server.count("asample") == SAMPLES_EACH
        assert [kind for _, kind in tenant.server.applied()] == [
            "forward_backward",
            "optim_step",
        ] * 4
        keys = {request.headers.get("x-api-key") for request in tenant.server.requests}
        assert keys == {tenant.config.api_key}


def test_limiters_differ_by_server_and_by_key(
    tenants: tuple[Tenant, Tenant], runtime: Runtime
) -> None:
    """R7, R8, R66: one limiter per (URL, key); spelling the URL otherwise changes nothing."""
    a, b = tenants
    same_url_other_key = _tenant(a.server, "tml-c", runtime)
    same_tenant_again = ServiceClient(
        config=make_config(a.server, base_url=a.server.url.upper().replace("HTTP", "http") + "/"),
        runtime=runtime,
    )
    everyone = [a.service, b.service, same_url_other_key.service, same_tenant_again]
    for service in everyone:
        service.create_sampling_client(base_model=MODEL)

    limiters = [
        runtime.registry.lookup(("limiter", service.config.tenant_key)) for service in everyone
    ]
    assert all(limiter is not None for limiter in limiters)
    assert len({id(limiter) for limiter in limiters[:3]}) == 3
    assert limiters[3] is limiters[0]
    assert not any("tml-" in str(key) for key in runtime.registry.keys())  # noqa: SIM118


def test_each_sampling_client_has_its_config_in_the_registry(
    tenants: tuple[Tenant, Tenant], runtime: Runtime
) -> None:
    """R9, R67: distinct entries, and each the Config of its own tenant."""
    clients = [
        (tenant, tenant.service.create_sampling_client(base_model=MODEL))
        for tenant in tenants
        for _ in range(2)
    ]

    assert len({client.client_id for _, client in clients}) == 4
    for tenant, client in clients:
        assert runtime.registry.lookup(("config", client.client_id)) == tenant.config


@pytest.fixture
def still() -> Iterator[tuple[FakeClock, Runtime]]:
    """A runtime whose time does not pass by itself."""
    clock = FakeClock()
    with Runtime(clock=clock) as runtime:
        yield clock, runtime


@pytest.mark.parametrize("is_one_server", [True, False])
def test_a_429_of_one_tenant_does_not_hold_back_the_other(
    still: tuple[FakeClock, Runtime], is_one_server: bool
) -> None:
    """R65, R68: A waits for its deadline; B, on the same server or another, sends at once."""
    clock, runtime = still
    with LoopbackServer() as first, LoopbackServer() as second:
        a = _tenant(first, "tml-a", runtime)
        b = _tenant(first if is_one_server else second, "tml-b", runtime)
        first.on("asample").reply(429, headers={"retry-after": "7"})
        sampling_a = a.service.create_sampling_client(base_model=MODEL)
        sampling_b = b.service.create_sampling_client(base_model=MODEL)

        assert isinstance(sampling_a.sample(PROMPT, 1, PARAMS).outcome(20).error, RateLimitError)
        waiting = sampling_a.sample(PROMPT, 1, PARAMS)
        others = await_many([sampling_b.sample(PROMPT, 1, PARAMS) for _ in range(10)], timeout=20)

        assert all(outcome.ok for outcome in others)
        assert not waiting.done()
        assert runtime.registry.lookup(("limiter", a.config.tenant_key)).backoff_until is not None
        assert runtime.registry.lookup(("limiter", b.config.tenant_key)).backoff_until is None
        clock.wait_for_sleepers(5)
        clock.advance(7)
        assert waiting.outcome(20).ok


def test_the_gate_is_shared_by_all_clients_of_a_tenant(
    still: tuple[FakeClock, Runtime],
) -> None:
    """R8, R53: a 429 met by one client holds back another client of the same tenant."""
    clock, runtime = still
    with LoopbackServer() as server:
        first, second = (
            _tenant(server, "tml-a", runtime).service.create_sampling_client(base_model=MODEL)
            for _ in range(2)
        )
        server.on("asample").reply(429, headers={"retry-after-ms": "2000"})
        assert not first.sample(PROMPT, 1, PARAMS).outcome(20).ok

        waiting = second.sample(PROMPT, 1, PARAMS)
        clock.wait_for_sleepers(5)
        assert server.count("asample") == 1
        clock.advance(2)

        assert waiting.outcome(20).ok
        assert server.count("asample") == 2


def test_training_is_retried_and_sampling_is_not(
    tenants: tuple[Tenant, Tenant], clock: FakeClock
) -> None:
    """R16, R69, R70: 5xx on submit and on polls is retried with a pause; on asample it surfaces."""
    a, b = tenants
    a.server.on("optim_step").reply(503).times(2)
    a.server.on("retrieve_future").reply(500).times(3).when(
        lambda body: body["request_id"].startswith("optim_step")
    )
    b.server.on("asample").reply(503)
    training = a.service.create_lora_training_client(base_model=MODEL, rank=8)
    sampling = b.service.create_sampling_client(base_model=MODEL)
    polls_before = a.server.count("retrieve_future")
    clock.sleeps.clear()

    stepped = training.optim_step(types.AdamParams())
    sampled = sampling.sample(PROMPT, 1, PARAMS)

    assert stepped.outcome(20).ok
    assert isinstance(sampled.outcome(20).error, InternalServerError)
    assert a.server.count("optim_step") == 3
    assert a.server.count("retrieve_future") - polls_before == 4
    assert b.server.count("asample") == 1
    assert a.server.applied() == [(1, "optim_step")]
    assert len([s for s in clock.sleeps if s >= 0.5]) == 5, "every retry waits"


def test_another_tenants_things_do_not_exist(
    tenants: tuple[Tenant, Tenant], runtime: Runtime
) -> None:
    """R38, R62: one server, two keys: B cannot see A's checkpoints."""
    a, _ = tenants
    training = a.service.create_lora_training_client(base_model=MODEL, rank=8)
    path = training.save_weights_for_sampler("mine").result(20).path
    other = _tenant(a.server, "tml-x", runtime).service
    mine, theirs = a.service.create_rest_client(), other.create_rest_client()

    assert mine.list_training_runs().result(20).training_runs
    assert [each.tinker_path for each in mine.list_user_checkpoints().result(20).checkpoints] == [
        path
    ]
    assert [
        each.tinker_path for each in mine.list_checkpoints(training.model_id).result(20).checkpoints
    ] == [path]

    assert not theirs.list_training_runs().result(20).training_runs
    assert not theirs.list_user_checkpoints().result(20).checkpoints
    for refused in (
        theirs.get_training_run(training.model_id),
        theirs.list_checkpoints(training.model_id),
        theirs.get_weights_info_by_tinker_path(path),
        theirs.get_external_weights_urls(path),
        theirs.set_checkpoint_ttl_from_tinker_path(path, 60),
        theirs.publish_checkpoint_from_tinker_path(path),
        theirs.delete_checkpoint_from_tinker_path(path),
    ):
        assert isinstance(refused.outcome(20).error, NotFoundError)
    with pytest.raises(NotFoundError):
        other.create_sampling_client(model_path=path)
    with pytest.raises(NotFoundError):
        other.create_training_client_from_state(path)
    (kept,) = mine.list_user_checkpoints().result(20).checkpoints
    assert (kept.tinker_path, kept.public) == (path, False), "another tenant's calls had no effect"


def test_a_handler_gets_events_of_both_tenants_and_no_key(tenants: tuple[Tenant, Tenant]) -> None:
    """R19, R72: one handler, events of both tenants, told apart by base_url, keys in none."""
    heard: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def listen(event: str, measured: Any, about: Any, config: Any) -> None:
        config.append((event, measured, about))

    telemetry.attach("multi-client", "tinkex.http.request.stop", listen, heard)
    try:
        for tenant in tenants:
            sampling = tenant.service.create_sampling_client(base_model=MODEL)
            sampling.sample(PROMPT, 1, PARAMS).result(20)
    finally:
        telemetry.detach("multi-client")

    for tenant in tenants:
        own = [about for _, _, about in heard if about["base_url"] == tenant.server.url]
        assert [about["path"] for about in own].count("/asample") == 1
        assert all(about["result"] == "ok" for about in own)
    assert all(measured["duration"] >= 0 for _, measured, _ in heard)
    assert "tml-" not in repr(heard)
    telemetry_calls = [tenant.server.count("telemetry") for tenant in tenants]
    assert telemetry_calls == [0, 0], "nothing is reported to a server unless asked for"
