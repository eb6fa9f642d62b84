"""Requests for the engine's tests: random but fixed data, and short ways to run things."""

from __future__ import annotations

import numpy as np

from tinkex.engine.interface import (
    Engine,
    OptimRequest,
    RequestError,
    SampleRequest,
    SampleResult,
    SamplingParams,
    TrainDatum,
    TrainRequest,
    TrainResult,
)
from tinkex.types.optimizers import TaggedAdamParams, TaggedOptimParams

VOCAB = 256


def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(0, VOCAB, length)


def sft_datum(length: int, seed: int = 0) -> TrainDatum:
    """Cross entropy with fractional weights, some zero."""
    rng = np.random.default_rng([length, seed, 1])
    weights = (rng.random(length) * (rng.random(length) > 0.4)).astype(np.float32)
    weights[-1] = 0.7
    inputs = {"target_tokens": rng.integers(0, VOCAB, length), "weights": weights}
    return TrainDatum(tokens=tokens(length, seed), inputs=inputs)


def top_k_datum(length: int, k: int, seed: int = 0) -> TrainDatum:
    rng = np.random.default_rng([length, k, seed, 2])
    weights = rng.random((length, k)).astype(np.float32)
    weights[0] = 0
    inputs = {"target_tokens": rng.integers(0, VOCAB, (length, k)), "weights": weights}
    return TrainDatum(tokens=tokens(length, seed), inputs=inputs)


def policy_datum(length: int, seed: int = 0, **extra: np.ndarray) -> TrainDatum:
    """Reinforcement learning inputs whose ratios lie on both sides of the clips."""
    rng = np.random.default_rng([length, seed, 3])
    advantages = rng.standard_normal(length).astype(np.float32)
    advantages[: length // 3] = 0  # the prompt
    inputs = {
        "target_tokens": rng.integers(0, VOCAB, length),
        "logprobs": (-6 + rng.standard_normal(length)).astype(np.float32),
        "advantages": advantages,
        **extra,
    }
    return TrainDatum(tokens=tokens(length, seed), inputs=inputs)


def train(
    engine: Engine,
    adapter_id: str,
    data: list[TrainDatum],
    loss_fn: str = "cross_entropy",
    **config,
) -> TrainResult:
    request = TrainRequest(
        adapter_id=adapter_id, data=data, loss_fn=loss_fn, loss_config=dict(config)
    )
    (result,) = engine.forward_backward([request])
    assert isinstance(result, TrainResult), result
    return result


def optim(engine: Engine, adapter_id: str, **numbers: float) -> dict[str, float]:
    """The metrics of an AdamW step."""
    return step_with(engine, adapter_id, TaggedAdamParams(**numbers))


def step_with(engine: Engine, adapter_id: str, params: TaggedOptimParams) -> dict[str, float]:
    """The metrics of a step of the parameters' optimizer."""
    (result,) = engine.optim_step([OptimRequest(adapter_id=adapter_id, params=params)])
    assert not isinstance(result, RequestError), result
    return result.metrics


def warm_up(engine: Engine, adapter_id: str, steps: int = 3) -> None:
    """Moves a fresh adapter far enough from zero that everything about it shows."""
    for step in range(steps):
        train(engine, adapter_id, [sft_datum(11, seed=100 + step)])
        optim(engine, adapter_id, learning_rate=0.02)


def sample_request(request_id: str = "r", **fields) -> SampleRequest:
    """A request; fields of SamplingParams go into its params."""
    given = {"model": "tiny", "tokens": tokens(6), "max_tokens": 8, **fields}
    params = {name: given.pop(name) for name in SamplingParams.__struct_fields__ if name in given}
    return SampleRequest(request_id=request_id, params=SamplingParams(**params), **given)


def run_samples(engine: Engine, *requests: SampleRequest) -> dict[str, SampleResult]:
    """Submits all, steps until all are done."""
    for request in requests:
        engine.submit_sample(request)
    done: dict[str, SampleResult] = {}
    for _ in range(10_000):
        progress = engine.step_sampling(0.0)
        done |= {result.request_id: result for result in progress.finished}
        if not (progress.running or progress.waiting):
            return done
    raise AssertionError("sampling does not end")
