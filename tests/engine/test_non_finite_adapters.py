"""An adapter that training has ruined affects its owner alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.engine.work import (
    optim,
    run_samples,
    sample_request,
    sft_datum,
    tokens,
    train,
)
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, RequestError, TrainDatum, TrainRequest
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS
from tinkex.engine.torch_engine import TorchEngine


@pytest.fixture
def ruined(engine):
    """The engine with a sampler whose logprobs are all NaN."""
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    train(engine, "a", [sft_datum(9)])
    optim(engine, "a", learning_rate=1e30)
    engine.snapshot("a", "ruined")
    return engine


@pytest.mark.usefixtures("with_and_without_kernels")
def test_sampling_from_an_adapter_that_is_not_finite_is_a_user_error(ruined) -> None:
    wrong = [
        sample_request("many", sampler_id="ruined", num_samples=3),
        sample_request("score", sampler_id="ruined", prompt_logprobs=True, max_tokens=1),
        sample_request("greedy", sampler_id="ruined", temperature=0.0),
    ]
    done = run_samples(ruined, *wrong, sample_request("good", max_tokens=5, stop=[]))
    for request in wrong:
        error = done[request.request_id].error
        assert error is not None
        assert (error.kind, error.code) == ("user", "not-finite")
        assert done[request.request_id].sequences == []
    assert done["good"].error is None
    assert np.isfinite(done["good"].sequences[0].logprobs).all()


@pytest.mark.usefixtures("with_and_without_kernels")
def test_cache_of_a_sequence_that_is_not_finite_does_not_reach_the_next_one(tiny: Path) -> None:
    # Room for two blocks: the next request gets the blocks where the ruined one lay.
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, cache_tokens=2 * BLOCK_TOKENS))
    fields = {"tokens": tokens(40), "max_tokens": 40, "seed": 1, "stop": []}
    before = run_samples(engine, sample_request("good", **fields))["good"]
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    train(engine, "a", [sft_datum(9)])
    optim(engine, "a", learning_rate=1e30)
    engine.snapshot("a", "ruined")
    bad = sample_request("bad", sampler_id="ruined", tokens=tokens(90, 1), max_tokens=3)
    assert run_samples(engine, bad)["bad"].error is not None
    after = run_samples(engine, sample_request("good", **fields))["good"]
    assert after.error is None
    np.testing.assert_array_equal(after.sequences[0].tokens, before.sequences[0].tokens)


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-38, 1e-45, 5e-324])
@pytest.mark.usefixtures("with_and_without_kernels")
def test_the_smallest_temperatures_are_greedy(temperature: float, engine) -> None:
    fields = {"tokens": tokens(6), "max_tokens": 5, "stop": [], "seed": 1}
    done = run_samples(
        engine,
        sample_request("cold", temperature=temperature, **fields),
        sample_request("greedy", temperature=0.0, **fields),
    )
    cold, greedy = (done[name].sequences[0] for name in ("cold", "greedy"))
    assert cold.tokens.tolist() == greedy.tokens.tolist()
    assert cold.logprobs.tolist() == [0.0] * 5


def test_numbers_that_do_not_fit_the_border_are_user_errors(tiny: Path) -> None:
    with EngineProcess(EngineOptions(models={"tiny": str(tiny)})) as engine:
        for fields in ({"seed": 2**70}, {"stop": [2**64]}, {"top_k": 2**70}):
            with pytest.raises(EngineUserError, match="64 bits"):
                engine.submit_sample(sample_request(**fields))
        with pytest.raises(EngineUserError, match="64 bits"):
            engine.create_adapter("a", "tiny", LoraSpec(seed=-(2**70)))
        assert run_samples(engine, sample_request("good"))["good"].error is None


@pytest.mark.usefixtures("with_and_without_kernels")
def test_training_beside_an_adapter_that_is_not_finite_gives_the_same_numbers(ruined) -> None:
    for name in ("alone", "beside"):
        ruined.create_adapter(name, "tiny", LoraSpec(rank=4, seed=3))
    huge = sft_datum(8, 1)
    huge.inputs["weights"] = huge.inputs["weights"] * np.float32(1e38)
    good = [sft_datum(12, 2)]

    def request(adapter_id: str, data: list[TrainDatum]) -> TrainRequest:
        return TrainRequest(adapter_id=adapter_id, data=data)

    (alone,) = ruined.forward_backward([request("alone", good)])
    answers = ruined.forward_backward(
        [request("a", [sft_datum(9)]), request("beside", good), request("beside", [huge])]
    )
    assert [isinstance(answer, RequestError) for answer in answers] == [True, False, True]
    assert answers[1].metrics["loss:sum"] == pytest.approx(alone.metrics["loss:sum"], abs=1e-5)
    norms = [optim(ruined, name)["grad_norm"] for name in ("alone", "beside")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
