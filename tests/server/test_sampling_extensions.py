"""Sampling parameters beyond the official ones, through the whole server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

import tinkex
from tests.server.driving import MODEL, Http
from tinkex import types
from tinkex.errors import RequestFailedError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

NAMES = [
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
]
PROMPT = [10, 20, 30, 20]
VOCAB = 256  # of the null engine's model


def asample(http: Http, params: dict[str, Any]) -> Any:
    """The raw answer to a sampling request with these parameters."""
    session = http.session()
    sampler = http.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
    )["sampling_session_id"]
    return http.call(
        "POST",
        "asample",
        {
            "sampling_session_id": sampler,
            "seq_id": 0,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
            "sampling_params": {"max_tokens": 2, **params},
        },
    )


def test_they_are_announced_in_both_places(http: Http) -> None:
    announced = http.post("client/config", {"sdk_version": "0.36.0"})["extensions"]
    of_sampling = [each for each in announced if each.startswith("sampling.")]
    assert of_sampling == ["sampling.stream", *(f"sampling.{name}" for name in NAMES)]
    assert http.get("get_server_capabilities")["sampling_extensions"] == NAMES


@pytest.mark.parametrize(
    "params",
    [
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"logit_bias": {"0": -100, str(VOCAB - 1): 100}},
        {"logit_bias": {str(token): 1 for token in range(VOCAB)}},
        {"logit_bias": None},
    ],
    ids=lambda params: str(params)[:40],
)
def test_raw_requests_up_to_the_bounds_are_served(params: dict[str, Any], http: Http) -> None:
    answer = asample(http, params)
    assert answer.status_code == 200, answer.text
    assert len(http.result(answer.json()["request_id"])["sequences"][0]["tokens"]) == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": 1.5}, "min_p=1.5 must be at least 0 and at most 1"),
        ({"min_p": None}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty=0.0 must be at least 0.01 and at most 100"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 must be at least -2 and at most 2"),
        ({"frequency_penalty": -3}, "frequency_penalty=-3.0 must be at least -2 and at most 2"),
        ({"logit_bias": {"7": 101}}, "logit_bias[7]=101.0 must be at least -100 and at most 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias has token id -1"),
        (
            {"logit_bias": {str(token): 1 for token in range(301)}},
            "logit_bias has 301 entries; it must have at most 300",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_raw_requests_beyond_are_refused(params: dict[str, Any], message: str, http: Http) -> None:
    answer = asample(http, params)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]


def test_a_bias_outside_the_vocabulary_fails_the_request(http: Http) -> None:
    promise = asample(http, {"logit_bias": {str(VOCAB): 1}}).json()["request_id"]
    failed = http.result(promise)
    assert f"logit_bias has token id {VOCAB}" in failed["error"]
    assert f"0..{VOCAB - 1}" in failed["error"]
    assert failed["category"] == "user"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm"))


@pytest.fixture(scope="module")
def sampler(
    folder: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tinkex.SamplingClient]:
    """Our client of a server with the real engine."""
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("tiny-server"),
        port=0,
        models=(ServedModel(name="tiny", source=folder),),
        num_threads=1,
    )
    with (
        EmbeddedServer(config) as server,
        tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service,
    ):
        assert service.get_server_capabilities().sampling_extensions == NAMES
        yield service.create_sampling_client(base_model="tiny")


def answer(sampler: tinkex.SamplingClient, **params: Any) -> types.SampledSequence:
    settings = types.SamplingParams(**{"max_tokens": 30, "temperature": 0, "stop": [], **params})
    response = sampler.sample(types.ModelInput.from_ints(PROMPT), 1, settings).result(60)
    return response.sequences[0]


def test_our_client_gets_what_transformers_computes(
    sampler: tinkex.SamplingClient, folder: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    processor = RepetitionPenaltyLogitsProcessor(1.5)
    ids = list(PROMPT)
    got = answer(sampler, repetition_penalty=1.5)
    for token, logprob in zip(got.tokens, got.logprobs or (), strict=True):
        with torch.no_grad():
            row = processor(torch.tensor([ids]), model(torch.tensor([ids])).logits[:, -1])[0]
        assert float(row.max() - row[token]) < 1e-4
        assert logprob == pytest.approx(float(row.log_softmax(-1)[token]), abs=2e-4)
        ids.append(token)


def test_each_parameter_reaches_the_engine(sampler: tinkex.SamplingClient) -> None:
    plain = answer(sampler)
    assert answer(sampler, frequency_penalty=2.0).tokens != plain.tokens
    assert answer(sampler, presence_penalty=2.0).tokens != plain.tokens
    assert set(answer(sampler, logit_bias={77: 100.0}).tokens) == {77}
    # min_p=1 leaves the likeliest token alone: as good as greedy, at any temperature.
    hot = answer(sampler, min_p=1.0, temperature=2.0)
    assert hot.tokens == plain.tokens
    assert hot.logprobs != plain.logprobs  # those of the tempered distribution


def test_a_bias_outside_the_models_vocabulary_is_refused(sampler: tinkex.SamplingClient) -> None:
    with pytest.raises(RequestFailedError, match="logit_bias has token id 272"):
        answer(sampler, logit_bias={272: 1.0})
