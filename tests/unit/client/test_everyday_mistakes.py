"""Mistakes that cost nothing but an exception: typed, named, and before any request."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import types
from tinkex.errors import ClientClosedError, ValidationError

MODEL = "tiny/model"
DATUM = types.Datum(
    types.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1, 1]}
)


def test_one_datum_is_no_batch(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    with pytest.raises(ValidationError, match=r"write \[datum\]"):
        training.forward_backward(DATUM, "cross_entropy").result(10)  # type: ignore[arg-type]
    assert server.count("forward_backward") == 0


@pytest.mark.parametrize("prompt", [[1, 2, 3], "abc", None])
def test_a_prompt_is_a_model_input(
    server: LoopbackServer, connect: Connect, prompt: object
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    with pytest.raises(ValidationError, match="ModelInput") as caught:
        sampler.sample(prompt, 1, types.SamplingParams()).result(10)  # type: ignore[arg-type]
    assert "from_ints" in caught.value.hint
    assert server.count("asample") == 0


def test_the_number_of_samples_may_be_numpys(connect: Connect) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=2)
    answer = sampler.sample(types.ModelInput.from_ints([1]), np.int64(2), params).result(20)
    assert len(answer.sequences) == 2
    with pytest.raises(ValidationError, match=r"num_samples=2\.5"):
        sampler.sample(types.ModelInput.from_ints([1]), 2.5, params).result(10)  # type: ignore[arg-type]


def test_nothing_is_taken_once_close_has_returned(server: LoopbackServer, connect: Connect) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL)
    sampler = service.create_sampling_client(base_model=MODEL)
    service.close()
    with pytest.raises(ClientClosedError):
        training.forward_backward([DATUM], "cross_entropy").result(10)
    with pytest.raises(ClientClosedError):
        sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams()).result(10)
    assert server.count("forward_backward") == server.count("asample") == 0


def test_a_custom_loss_may_have_no_metrics(connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    out = training.forward_backward_custom([DATUM], lambda data, lps: (lps[0].sum(), None))
    assert out.result(20).metrics["loss:sum"] < 0


def test_bad_input_is_an_outcome_of_whatever_gives_a_future(
    server: LoopbackServer, connect: Connect
) -> None:
    """R4: nothing is raised by the call itself, and nothing is sent."""
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL)
    sampler = service.create_sampling_client(base_model=MODEL)
    rest = service.create_rest_client()
    sent = len(server.requests)
    for handle in (
        training.forward([], "cross_entropy"),
        training.forward_backward([], "cross_entropy"),
        training.forward_backward_custom([], lambda data, logprobs: (logprobs[0].sum(), {})),
        training.optim_step(),
        training.save_state("x" * 3, user_metadata={"a": object()}),  # type: ignore[dict-item]
        sampler.sample(types.ModelInput.from_ints([1]), 0, types.SamplingParams()),
        sampler.compute_logprobs("a text"),  # type: ignore[arg-type]
        rest.get_training_run_by_tinker_path("no path"),
        rest.copy_weights("no path"),
        service.create_custom_loss("no loss", {"logprobs": 1}),  # type: ignore[arg-type]
    ):
        outcome = handle.outcome(10)
        assert isinstance(outcome.error, ValidationError)
        assert handle.exception(10) is outcome.error
        with pytest.raises(ValidationError):
            handle.result(10)
        assert any(__file__ in note for note in outcome.error.__notes__)
    assert len(server.requests) == sent


def test_a_refused_call_whose_outcome_is_never_read_is_logged(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    training.forward_backward([], "cross_entropy").outcome()
    gc.collect()
    assert "never read" not in caplog.text
    training.forward_backward([], "cross_entropy")
    gc.collect()
    assert (
        "TrainingClient.forward_backward was refused, and its outcome was never read" in caplog.text
    )
    assert "The batch is empty" in caplog.text
