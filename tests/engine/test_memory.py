"""What an engine keeps for speed is bounded, and given back when there is nothing to do."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.engine.work import run_samples, sample_request, sft_datum, tokens, train, warm_up
from tinkex.engine.interface import LoraSpec, OptimRequest, TrainRequest
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.engine.sampling.block_pool import BlockPool, prefix_keys
from tinkex.engine.torch_engine import TorchEngine

MIB = 2**20
LENGTHS = range(60, 300, 6)
GROWTH_BYTES = 192 * MIB
"""Documented are 150 MiB for the caches of shapes; the rest is what the allocator cannot trim."""


def test_an_idle_engine_gives_back_what_mixed_shapes_took(tiny: Path) -> None:
    """Real memory of a real process: batches and prompts of forty lengths, then a pause."""
    options = EngineOptions(models={"tiny": str(tiny)}, num_threads=2, trim_after_s=1.0)
    with EngineProcess(options) as engine:
        engine.create_adapter("a", "tiny", LoraSpec(rank=4))
        engine.create_adapter("b", "tiny", LoraSpec(rank=16))
        mix(engine, LENGTHS[0])
        before = psutil.Process(engine.pid).memory_info().rss
        for length in LENGTHS:
            mix(engine, length)
        bound, deadline = before + GROWTH_BYTES, time.monotonic() + 60
        while (now := psutil.Process(engine.pid).memory_info().rss) > bound:
            assert time.monotonic() < deadline, f"{(now - before) // MIB} MiB are kept"
            time.sleep(0.2)


def mix(engine: EngineProcess, length: int) -> None:
    """A step of two adapters and some samples, no shape like that of another length."""
    batch = [
        TrainRequest(adapter_id=name, data=[sft_datum(length + i, i) for i in range(count)])
        for name, count in (("a", 3), ("b", 2))
    ]
    engine.forward_backward(batch)
    engine.optim_step([OptimRequest(adapter_id=name) for name in "ab"])
    engine.snapshot("a", "s")
    requests = [
        sample_request(f"r{i}", sampler_id="s", tokens=tokens(length - i, i), max_tokens=4)
        for i in range(length % 7 + 1)
    ]
    scored = sample_request("scored", tokens=tokens(length), prompt_logprobs=True, max_tokens=1)
    run_samples(engine, *requests, scored)


@pytest.mark.usefixtures("with_and_without_kernels")
def test_trimming_frees_the_cache_and_changes_no_number(tiny: Path) -> None:
    options = EngineOptions(models={"tiny": str(tiny)}, num_threads=1, memory_bytes=2**30)
    engine = TorchEngine(options)
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.snapshot("a", "s")
    request = sample_request("r", sampler_id="s", tokens=tokens(200), max_tokens=8, seed=3)
    before = run_samples(engine, request)["r"]
    runner = engine._bases["tiny"].sampler._runner
    assert "_cache" in vars(runner)
    engine.trim()
    assert "_cache" not in vars(runner), "its memory is given back"
    train(engine, "a", [sft_datum(20)])
    after = run_samples(engine, request)["r"]
    np.testing.assert_array_equal(before.sequences[0].tokens, after.sequences[0].tokens)
    np.testing.assert_allclose(before.sequences[0].logprobs, after.sequences[0].logprobs, atol=1e-5)


def test_trimming_in_the_midst_of_samples_leaves_them_alone(tiny: Path) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30))
    request = sample_request("r", tokens=tokens(100), max_tokens=30, seed=5, stop=[])
    expected = run_samples(engine, request)["r"]
    engine.submit_sample(request)
    finished = []
    while not finished:
        finished = engine.step_sampling(0.0).finished
        engine.trim()
    np.testing.assert_array_equal(finished[0].sequences[0].tokens, expected.sequences[0].tokens)


def test_a_pool_that_is_cleared_frees_what_no_sequence_owns() -> None:
    pool = BlockPool(4)
    keys = prefix_keys(b"", np.arange(8), 4)
    owned, idle = pool.take(2) or []
    for block, key in zip((owned, idle), keys, strict=True):
        pool.remember(block, key)
    pool.release([idle])
    pool.forget()
    assert pool.find(keys) == [owned], "a beginning that is in use can still be found"
    assert pool.num_available == 3
    assert sorted(pool.take(3) or []) == sorted({0, 1, 2, 3} - {owned})
    pool.release([owned])
    assert pool.find(keys) == [owned]
