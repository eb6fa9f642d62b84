"""Streams on a server that does not announce them: everything comes at the end."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.data import PROMPT
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import types
from tinkex.client.sample_stream import DeltaQueue, SampleStream
from tinkex.errors import RequestFailedError

MODEL = "tiny/model"


def test_all_tokens_come_at_the_end(server: LoopbackServer, connect: Connect) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    stream = sampler.sample(PROMPT, 2, types.SamplingParams(max_tokens=3), stream=True)
    deltas = list(stream)
    answer = stream.result(20)
    assert [each.tokens for each in deltas] == [each.tokens for each in answer.sequences]
    assert [each.logprobs for each in deltas] == [each.logprobs for each in answer.sequences]
    assert [(each.index, each.offset) for each in deltas] == [(0, 0), (1, 0)]
    assert [each.stop_reason for each in deltas] == [e.stop_reason for e in answer.sequences]
    assert "stream" not in server.calls("asample")[-1].decoded
    assert server.count("stream_sample") == 0


def test_a_loop_can_wait_for_it(server: LoopbackServer, connect: Connect) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    server.hold("asample")
    stream = sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=3), stream=True)
    assert not stream.wait(0.01)

    async def read() -> list[int]:
        asyncio.get_running_loop().call_later(0.05, server.release, "asample")
        return [token async for delta in stream for token in delta.tokens]

    assert asyncio.run(read()) == stream.result(20).sequences[0].tokens
    with pytest.raises(StopIteration):
        next(stream)


def test_an_error_after_the_tokens_comes_after_the_tokens() -> None:
    queue = DeltaQueue()
    stream = SampleStream.failed(RequestFailedError("It came out otherwise."))
    stream._queue = queue
    queue.put(types.SampleDelta(index=0, offset=0, tokens=[1], logprobs=[-1.0]))
    queue.note_error(RequestFailedError("It came out otherwise."))
    queue.finish()
    assert next(stream).tokens == [1]
    with pytest.raises(RequestFailedError, match="otherwise"):
        next(stream)
