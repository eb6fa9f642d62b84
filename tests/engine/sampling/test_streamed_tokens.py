"""Streamed requests: their deltas, put together, are their results, whatever happens meanwhile."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.engine.work import sample_request, tokens
from tinkex.engine.interface import Engine, SampledSequence, SampleResult, SequenceDelta
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.engine.torch_engine import TorchEngine

Streams = dict[tuple[str, int], list[SequenceDelta]]


def _run(
    engine: Engine, *requests, budget_s: float = 0.0
) -> tuple[dict[str, SampleResult], Streams]:
    """Results and deltas of these requests."""
    for request in requests:
        engine.submit_sample(request)
    done: dict[str, SampleResult] = {}
    streams: Streams = defaultdict(list)
    for _ in range(10_000):
        progress = engine.step_sampling(budget_s)
        done |= {result.request_id: result for result in progress.finished}
        for delta in progress.streamed:
            streams[delta.request_id, delta.index].append(delta)
        if not (progress.running or progress.waiting):
            return done, streams
    raise AssertionError("sampling does not end")


def _same(sequence: SampledSequence, deltas: list[SequenceDelta]) -> None:
    ends = np.cumsum([each.tokens.size for each in deltas]).tolist()
    assert [each.offset for each in deltas] == [0, *ends[:-1]]
    assert [each.stop_reason for each in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].stop_reason == sequence.stop_reason
    np.testing.assert_array_equal(np.concatenate([d.tokens for d in deltas]), sequence.tokens)
    np.testing.assert_array_equal(np.concatenate([d.logprobs for d in deltas]), sequence.logprobs)
    if sequence.topk is None:
        assert all(each.topk is None for each in deltas)
        return
    tables = [each.topk for each in deltas if each.topk is not None]
    np.testing.assert_array_equal(
        np.concatenate([each.token_ids for each in tables]), sequence.topk.token_ids
    )
    np.testing.assert_array_equal(
        np.concatenate([each.logprobs for each in tables]), sequence.topk.logprobs
    )


@pytest.fixture(params=["null", "torch", "torch process"])
def any_engine(request: pytest.FixtureRequest, tiny: Path):
    options = EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30, num_threads=1)
    if request.param == "null":
        yield NullEngine(("tiny",))
    elif request.param == "torch":
        yield TorchEngine(options)
    else:
        with EngineProcess(options) as process:
            yield process


def test_deltas_put_together_are_the_result(any_engine) -> None:
    fields = {"num_samples": 3, "max_tokens": 20, "seed": 4, "topk_sample_logprobs": 2}
    results, streams = _run(
        any_engine,
        sample_request("s", stream=True, **fields),
        sample_request("plain", tokens=tokens(7), seed=1, max_tokens=30),
    )
    assert {request_id for request_id, _ in streams} == {"s"}
    for index, sequence in enumerate(results["s"].sequences):
        _same(sequence, streams["s", index])
    again, none = _run(any_engine, sample_request("t", **fields))
    assert not none
    for one, other in zip(results["s"].sequences, again["t"].sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_stops_and_prompt_scores_hold(engine: TorchEngine) -> None:
    free, _ = _run(engine, sample_request("free", seed=3, max_tokens=20, stop=[]))
    stop = int(free["free"].sequences[0].tokens[7])
    results, streams = _run(
        engine,
        sample_request("s", seed=3, max_tokens=20, stop=[stop], prompt_logprobs=True, stream=True),
    )
    (sequence,) = results["s"].sequences
    assert sequence.stop_reason == "stop"
    assert sequence.tokens[-1] == stop
    assert results["s"].prompt_logprobs is not None
    _same(sequence, streams["s", 0])


def test_preempted_sequences_stream_no_token_twice(tiny: Path) -> None:
    engine = TorchEngine(
        EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30, cache_tokens=256)
    )
    requests = [
        sample_request(
            f"s{i}", tokens=tokens(20 + i, i), seed=i, max_tokens=80, stop=[], stream=True
        )
        for i in range(6)
    ]
    results, streams = _run(engine, *requests)
    for i in range(6):
        _same(results[f"s{i}"].sequences[0], streams[f"s{i}", 0])


def test_a_first_token_ends_the_call_and_later_ones_do_not(engine: TorchEngine) -> None:
    engine.submit_sample(sample_request("s", max_tokens=40, seed=1, stop=[], stream=True))
    first = engine.step_sampling(60.0)
    assert [delta.tokens.size for delta in first.streamed] == [1]
    assert first.finished == []
    rest = engine.step_sampling(60.0)
    assert [delta.tokens.size for delta in rest.streamed] == [39]
    assert [each.request_id for each in rest.finished] == ["s"]
    assert engine.step_sampling(0.0).streamed == []


def test_a_cancelled_request_streams_no_more(engine: TorchEngine) -> None:
    engine.submit_sample(sample_request("s", max_tokens=40, stop=[], stream=True))
    engine.submit_sample(sample_request("t", max_tokens=5, stop=[], stream=True))
    assert len(engine.step_sampling(0.0).streamed) == 2
    engine.cancel_sample("s")
    rest = [delta for _ in range(6) for delta in engine.step_sampling(0.0).streamed]
    assert {delta.request_id for delta in rest} == {"t"}
    engine.submit_sample(sample_request("u", max_tokens=40, stop=[], stream=True))
    engine.step_sampling(0.0)
    engine.reset()
    assert engine.step_sampling(0.0).streamed == []


def test_a_step_that_fails_streams_nothing(engine: TorchEngine, monkeypatch) -> None:
    sampler = next(iter(engine._unique_bases())).sampler
    monkeypatch.setattr(sampler, "_runner", None)  # any step fails from here on
    results, streams = _run(engine, sample_request("s", max_tokens=4, stream=True))
    assert results["s"].error is not None
    assert not streams
