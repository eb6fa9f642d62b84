"""`unload_model` and `get_server_health` of the SDK, in their three forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.server.driving import MODEL
from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.loopback import LoopbackServer
from tinkex import AdamParams, Config, Runtime, ServiceClient
from tinkex.errors import APIStatusError, TinkexError
from tinkex.server.embedded import EmbeddedServer


@pytest.fixture
def service(server: EmbeddedServer) -> Iterator[ServiceClient]:
    config = Config(base_url=server.base_url, api_key=server.api_key, environ={}, files=())
    with Runtime() as runtime, ServiceClient(config=config, runtime=runtime) as client:
        yield client


def test_an_unloaded_model_has_ended_and_keeps_its_checkpoints(
    service: ServiceClient,
) -> None:
    training, rest = service.create_lora_training_client(MODEL), service.create_rest_client()
    training.forward_backward(make_data([3, 5]), CROSS_ENTROPY).result(60)
    training.optim_step(AdamParams()).result(60)
    path = training.save_state("kept").result(60).path
    assert training.unload_model().model_id == training.model_id
    assert rest.get_training_run(training.model_id).result(60).ended
    again = service.create_training_client_from_state(path)
    assert again.model_id != training.model_id


def test_unloading_waits_for_its_place_in_the_order(service: ServiceClient) -> None:
    training = service.create_lora_training_client(MODEL)
    steps = [training.optim_step(AdamParams()) for _ in range(5)]
    unloading = training.unload_model_future()
    assert unloading.result(60).model_id == training.model_id
    for step in steps:  # accepted before, each has an outcome of its own
        error = step.outcome(60).error
        assert error is None or isinstance(error, TinkexError)


def test_the_other_forms_do_the_same(service: ServiceClient) -> None:
    first, second = (service.create_lora_training_client(MODEL) for _ in range(2))
    assert asyncio.run(first.unload_model_async()).model_id == first.model_id
    assert second.unload_model_future().result(60).model_id == second.model_id
    assert asyncio.run(service.get_server_health_async()).status == "ok"
    assert service.get_server_health_future().result(60).status == "ok"


def test_health_is_requested_once(service: ServiceClient) -> None:
    assert service.get_server_health().status == "ok"
    with LoopbackServer() as busy, Runtime() as runtime:
        busy.on("healthz").reply(503, json_body={"detail": "The server is starting."}).always()
        config = Config(base_url=busy.url, api_key="tml-key", environ={}, files=())
        with (
            ServiceClient(config=config, runtime=runtime) as client,
            pytest.raises(APIStatusError, match="is starting") as caught,
        ):
            client.get_server_health()
        assert caught.value.status == 503
        assert busy.count("healthz") == 1
