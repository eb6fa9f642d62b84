"""Streamed samples in the SDK: one value per piece, whatever becomes of server and connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator

import pytest

import tinkex
from tests.support.waiting import wait_until
from tinkex import types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import FutureCancelledError, RequestFailedError, ValidationError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

PROMPT = types.ModelInput.from_ints([1, 2, 3])
_LONG = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 2 * _LONG
    (folder / "config.json").write_text(json.dumps(config))
    served = ServerConfig(
        data_dir=tmp_path_factory.mktemp("data"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        drain_s=5.0,
    )
    with EmbeddedServer(served) as running:
        yield running


@pytest.fixture
def sampler(server: EmbeddedServer) -> Iterator[tinkex.SamplingClient]:
    with (
        tinkex.Runtime() as runtime,
        tinkex.ServiceClient(
            base_url=server.base_url, api_key=server.api_key, runtime=runtime
        ) as service,
    ):
        yield service.create_sampling_client(base_model="tiny")


def params(max_tokens: int, **fields) -> types.SamplingParams:
    return types.SamplingParams(max_tokens=max_tokens, stop=[], **fields)


def joined(deltas: Iterable[types.SampleDelta], count: int = 1) -> list[list[int]]:
    """The tokens of each sequence; refuses a gap."""
    tokens: list[list[int]] = [[] for _ in range(count)]
    for delta in deltas:
        assert delta.offset == len(tokens[delta.index])
        tokens[delta.index] += delta.tokens
    return tokens


def test_pieces_are_the_result_of_the_plain_call(sampler: tinkex.SamplingClient) -> None:
    fields = {"include_prompt_logprobs": True, "topk_sample_logprobs": 2}
    plain = sampler.sample(PROMPT, 2, params(40, seed=3), **fields).result()
    with sampler.sample(PROMPT, 2, params(40, seed=3), stream=True, **fields) as stream:
        deltas = list(stream)
    answer = stream.result()
    assert joined(deltas, 2) == [each.tokens for each in plain.sequences]
    for index in range(2):
        own = [each for each in deltas if each.index == index]
        assert [x for d in own for x in d.logprobs] == plain.sequences[index].logprobs
        assert [x for d in own for x in d.topk_logprobs or []] == (
            plain.sequences[index].topk_logprobs
        )
        assert [each.stop_reason for each in own][-1] == "length"
    assert answer.prompt_logprobs == plain.prompt_logprobs
    assert [each.tokens for each in answer.sequences] == [each.tokens for each in plain.sequences]


def test_a_stream_is_awaited_on_any_loop(sampler: tinkex.SamplingClient) -> None:
    async def tokens() -> list[list[int]]:
        stream = await sampler.sample_async(PROMPT, 1, params(200), stream=True)
        async with stream:
            found = joined([delta async for delta in stream])
            assert found == [each.tokens for each in (await stream.result_async()).sequences]
            return found

    assert len(asyncio.run(tokens())[0]) == 200


def test_a_task_that_is_cancelled_cancels_its_sample(sampler: tinkex.SamplingClient) -> None:
    async def run() -> tinkex.SampleStream:
        stream = await sampler.sample_async(PROMPT, 1, params(_LONG), stream=True)
        has_begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                has_begun.set()

        reading = asyncio.create_task(read())
        await has_begun.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return stream

    stream = asyncio.run(run())
    with pytest.raises(FutureCancelledError):
        stream.result()


def test_the_server_may_be_restarted_meanwhile(
    sampler: tinkex.SamplingClient, server: EmbeddedServer
) -> None:
    stream = sampler.sample(PROMPT, 2, params(1000), stream=True)
    deltas = [next(stream) for _ in range(4)]
    server.kill()
    server.start()
    tokens = joined([*deltas, *stream], 2)
    assert tokens == [each.tokens for each in stream.result().sequences]
    assert [len(each) for each in tokens] == [1000, 1000]


def test_what_was_cancelled_elsewhere_says_so(sampler: tinkex.SamplingClient) -> None:
    stream = sampler.sample(PROMPT, 1, params(_LONG), stream=True)
    next(stream)
    threading.Timer(0.1, stream.cancel).start()
    with pytest.raises(FutureCancelledError):
        list(stream)
    assert "cancelled" in repr(stream)


def test_errors_come_where_the_tokens_would(sampler: tinkex.SamplingClient) -> None:
    refused = sampler.sample("text", 1, params(4), stream=True)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="must be a ModelInput"):
        list(refused)
    with pytest.raises(ValidationError, match="must be a ModelInput"):
        refused.result()
    too_many = sampler.sample(PROMPT, 10**6, params(4), stream=True)
    with pytest.raises(tinkex.TinkexError, match="num_samples"):
        next(too_many)


def test_waiting_shows_whether_something_came(sampler: tinkex.SamplingClient) -> None:
    with sampler.sample(PROMPT, 1, params(_LONG), stream=True) as stream:
        wait_until(lambda: stream.wait(0.1))
        next(stream)
        assert not stream.done()
    assert stream.wait(10), "the end is something, too"
    with pytest.raises(FutureCancelledError):
        list(stream)


def test_an_unknown_token_fails_the_sample_and_its_stream(sampler: tinkex.SamplingClient) -> None:
    stream = sampler.sample(types.ModelInput.from_ints([10**6]), 1, params(4), stream=True)
    with pytest.raises(RequestFailedError, match="1000000"):
        list(stream)
