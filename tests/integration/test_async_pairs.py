"""Every `_async` name gives what its twin gives, awaited from the caller's own loop."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tests.support.numbers import logprob, sampled_tokens
from tinkex import (
    Runtime,
    SamplingClient,
    ServiceClient,
    TrainingClient,
    await_many_async,
    stream_async,
    types,
)
from tinkex.errors import ClientClosedError, InternalServerError, ValidationError

MODEL = "tiny/model"


def test_training_awaited(server: LoopbackServer, connect: Connect) -> None:
    async def train() -> tuple[float, ...]:
        service = connect()
        training = await service.create_lora_training_client_async(base_model=MODEL, rank=8)
        await (await training.optim_step_async(adam_params=types.AdamParams()))
        scored = await (await training.forward_async(make_data([3]), CROSS_ENTROPY))
        saved = await (await training.save_state_async("one"))
        await (await training.optim_step_async(types.AdamParams()))
        await (await training.load_state_async(saved.path))
        again = await (await training.forward_async(make_data([3]), CROSS_ENTROPY))
        await (await training.load_state_with_optimizer_async(saved.path))
        info = await training.get_info_async()
        resumed = await service.create_training_client_from_state_async(saved.path)
        with_optimizer = await service.create_training_client_from_state_with_optimizer_async(
            saved.path
        )
        third = await (await with_optimizer.forward_async(make_data([3]), CROSS_ENTROPY))
        assert info.model_id == training.model_id
        assert len({training.model_id, resumed.model_id, with_optimizer.model_id}) == 3
        return tuple(o.metrics["loss:sum"] for o in (scored, again, third))

    assert asyncio.run(train()) == (loss_of([3], 1),) * 3
    loads = [request.decoded["optimizer"] for request in server.calls("load_weights")]
    assert loads == [False, True, False, True]


def test_samplers_awaited(server: LoopbackServer, connect: Connect) -> None:
    async def sample() -> list[list[float | None]]:
        service = connect()
        training = await service.create_lora_training_client_async(base_model=MODEL, rank=8)
        await (await training.optim_step_async(types.AdamParams()))
        named = await (await training.save_weights_for_sampler_async("snap"))
        clients = [
            await training.save_weights_and_get_sampling_client_async(),
            await training.create_sampling_client_async(named.path),
            await service.create_sampling_client_async(model_path=named.path),
        ]
        assert await clients[0].get_base_model_async() == MODEL
        return [await client.compute_logprobs_async(PROMPT) for client in clients]

    assert asyncio.run(sample()) == [[None, logprob(2, 1), logprob(3, 1)]] * 3


@pytest.mark.parametrize("client", [ServiceClient, TrainingClient, SamplingClient])
def test_whatever_blocks_has_an_awaited_and_a_future_twin(client: type) -> None:
    """R4: `create_*` and `get_*`, with the same parameters."""
    names = {name for name in dir(client) if re.match(r"(create|get|save_weights_and_get)_", name)}
    twins = {name for name in names if name.endswith(("_async", "_future"))}
    asks_nobody = {
        *("create_rest_client", "get_sampler_handle", "get_console_url", "get_playground_url"),
    }
    gives_a_future = {"create_custom_loss"}
    for name in sorted(names - twins - asks_nobody - gives_a_future):
        parameters = inspect.signature(getattr(client, name)).parameters
        awaited, future = getattr(client, f"{name}_async"), getattr(client, f"{name}_future")
        assert inspect.iscoroutinefunction(awaited)
        assert str(inspect.signature(future).return_annotation).startswith("Future[")
        for twin in (awaited, future):
            assert inspect.signature(twin).parameters == parameters, twin


def test_everything_is_made_through_futures(server: LoopbackServer, connect: Connect) -> None:
    """R4: many at once, in one thread that never waits in between."""
    service = connect()
    models = service.get_server_capabilities_future()
    making = [service.create_lora_training_client_future(base_model=MODEL) for _ in range(3)]
    base = service.create_sampling_client_future(base_model=MODEL)
    assert [each.model_name for each in models.result(20).supported_models] == [MODEL]
    training = [each.result(20) for each in making]
    assert len({each.model_id for each in training}) == 3
    infos = [each.get_info_future() for each in training]
    assert [each.result(20).model_id for each in infos] == [each.model_id for each in training]
    snapshot = training[0].save_weights_and_get_sampling_client_future("snap")
    state = training[0].save_state("state").result(20).path
    resumed = service.create_training_client_from_state_with_optimizer_future(state)
    fresh = service.create_training_client_from_state_future(state)
    assert resumed.result(20).model_id != fresh.result(20).model_id
    assert base.result(20).get_base_model_future().result(20) == MODEL
    assert snapshot.result(20).sample(PROMPT, 1, PARAMS).outcome(20).ok
    neither = service.create_sampling_client_future().outcome(20).error
    assert isinstance(neither, ValidationError)
    assert isinstance(
        service.create_lora_training_client_future(MODEL, rank=0).outcome(20).error, ValidationError
    )


def test_a_custom_loss_awaited(server: LoopbackServer, connect: Connect) -> None:
    def loss(data: object, logprobs: list) -> tuple[object, dict[str, float]]:
        return -sum(lp.sum() for lp in logprobs), {}

    async def train() -> float:
        training = await connect().create_lora_training_client_async(base_model=MODEL, rank=8)
        handle = await training.forward_backward_custom_async(make_data([3]), loss)
        return (await handle).metrics["loss:sum"]

    assert asyncio.run(train()) == pytest.approx(loss_of([3]))


def test_many_awaited_and_streamed(server: LoopbackServer, connect: Connect) -> None:
    async def sample() -> tuple[list[bool], list[list[int]]]:
        sampling = await connect().create_sampling_client_async(base_model=MODEL)
        server.on("asample").reply(500).when(lambda body: body["seq_id"] == 1)
        outcomes = await await_many_async([sampling.sample(PROMPT, 1, PARAMS) for _ in range(3)])
        assert isinstance(outcomes[1].error, InternalServerError)
        prompts = [types.ModelInput.from_ints([n]) for n in range(10)]
        streamed = stream_async(lambda p: sampling.sample(p, 1, PARAMS), prompts, max_in_flight=3)
        tokens = [outcome.unwrap().sequences[0].tokens async for outcome in streamed]
        return [outcome.ok for outcome in outcomes], tokens

    expected = [sampled_tokens([n], 5, 0, 4) for n in range(10)]
    assert asyncio.run(sample()) == ([True, False, True], expected)


def test_cancelling_an_awaited_sample_cancels_the_sample(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    """`sample_async` owns its handle: no other caller could wait for it afterwards."""
    server.hold("asample")

    async def impatient() -> None:
        sampling = await connect().create_sampling_client_async(base_model=MODEL)
        idle = runtime.num_tasks
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sampling.sample_async(PROMPT, 1, PARAMS), 0.05)
        server.wait_until(lambda: runtime.num_tasks == idle)

    asyncio.run(impatient())


def test_an_async_block_finishes_the_session(server: LoopbackServer, runtime: Runtime) -> None:
    async def work() -> None:
        async with ServiceClient(config=make_config(server), runtime=runtime) as service:
            await service.get_server_capabilities_async()
            await service.create_sampling_client_async(base_model=MODEL)
            raise ValueError("for the test")

    with pytest.raises(ValueError, match="for the test"):
        asyncio.run(work())

    (session,) = server.service.world.sessions.values()
    assert session.finished is not None
    assert session.finished["reason"] == {"type": "errored"}


def test_rest_awaited(server: LoopbackServer, connect: Connect, tmp_path: Path) -> None:
    async def look() -> None:
        service = connect()
        training = await service.create_lora_training_client_async(base_model=MODEL, rank=8)
        state = (await (await training.save_state_async("one"))).path
        export = (await (await training.save_weights_external_async("export"))).path
        rest = service.create_rest_client()
        run = await rest.get_training_run_async(training.model_id)
        assert run == await rest.get_training_run_by_tinker_path_async(state)
        assert (await rest.list_training_runs_async()).training_runs == [run]
        assert len((await rest.list_checkpoints_async(training.model_id)).checkpoints) == 2
        assert len((await rest.list_user_checkpoints_async()).checkpoints) == 2
        assert set((await rest.get_external_weights_urls_async(export)).urls) == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        folder = await rest.download_checkpoint_async(export, tmp_path / "out")
        assert len(list(folder.iterdir())) == 2
        await rest.publish_checkpoint_from_tinker_path_async(state)
        await rest.unpublish_checkpoint_from_tinker_path_async(state)
        await rest.set_checkpoint_ttl_from_tinker_path_async(state, 3600)
        assert (await rest.copy_weights_async(state, "p")).endswith("-copy")
        await rest.delete_checkpoint_from_tinker_path_async(state)
        await rest.delete_checkpoint_async(training.model_id, "external_weights/export")

    asyncio.run(look())
    left = list(server.service.world.checkpoints)
    assert [path.rsplit("/", 1)[1] for path in left] == ["one-copy"]


def test_a_closed_client_refuses_work_at_once(server: LoopbackServer, connect: Connect) -> None:
    service = connect()
    service.create_sampling_client(base_model=MODEL)
    service.close().result(20)
    count = len(server.requests)

    with pytest.raises(ClientClosedError):
        service.create_sampling_client(base_model=MODEL)
    with pytest.raises(ClientClosedError):
        service.create_rest_client().list_sessions().result(10)

    assert len(server.requests) == count


def test_creating_by_loading_is_one_request(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["create_model_via_load_weights"] = True
    service = connect()
    first = service.create_lora_training_client(base_model=MODEL, rank=8)
    first.optim_step(types.AdamParams())
    path = first.save_state("one").result(20).path

    second = service.create_training_client_from_state_with_optimizer(path)

    assert second.model_id.endswith(":train:1")
    assert second.forward(make_data([3]), CROSS_ENTROPY).result(20).metrics["loss:sum"] == loss_of(
        [3], 1
    )
    assert server.count("weights_info") == 0
    assert server.count("create_model") == 1
    assert server.applied(second.model_id) == [(1, "forward_backward")]


def test_a_sampler_is_of_something(server: LoopbackServer, connect: Connect) -> None:
    with pytest.raises(ValidationError):
        connect().create_sampling_client()

    assert server.count("create_sampling_session") == 0


def test_serial_servers_get_chunks_one_after_the_other(
    server: LoopbackServer, connect: Connect
) -> None:
    """With parallel_fwdbwd_chunks off, no two submits of a batch are open at once."""
    server.service.flags.update(fwdbwd_max_chunk_len=1, parallel_fwdbwd_chunks=False)
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    held = server.on("forward_backward").hold()

    passed = training.forward_backward(make_data([3, 4, 5]), CROSS_ENTROPY)
    server.wait_for("forward_backward")
    with pytest.raises(TimeoutError):
        passed.result(0.03)
    assert server.count("forward_backward") == 1
    held.release()

    assert passed.result(20).metrics["loss:sum"] == loss_of([3, 4, 5])


def test_dynamic_config_is_read_again_at_its_interval(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    """The dynamic config is read again at its interval; a failed reading keeps the old one."""
    server.service.dynamic_flags.update(refresh_interval_sec=100, sample_cancel_enabled=False)
    sampling = connect().create_sampling_client(base_model=MODEL)
    server.on("dynamic_config").reply(403)
    for reading in (2, 3):
        clock.wait_for_sleepers(2)
        server.service.dynamic_flags["sample_cancel_enabled"] = True
        clock.advance(100)
        server.wait_for("dynamic_config", reading)
    clock.wait_for_sleepers(2)
    server.hold("asample")

    handle = sampling.sample(PROMPT, 1, PARAMS)
    server.wait_for("retrieve_future")
    handle.cancel()

    server.wait_for("cancel_future")
