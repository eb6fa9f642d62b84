"""The endpoint's requests beside the sampler's own parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from tinkex.server.openai.requests import CompletionRequest, OpenAIRequest
from tinkex.server.openai.sampling_terms import sampling_params
from tinkex.types.sampling import SamplingParams


def test_every_sampling_parameter_can_be_set() -> None:
    assert set(SamplingParams.__struct_fields__) <= set(OpenAIRequest.__struct_fields__)


def test_parameters_of_one_name_are_passed_on() -> None:
    given: dict[str, Any] = {
        "seed": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.75,
        "frequency_penalty": -0.5,
        "logit_bias": {5: 2.0},
    }
    assert set(given) == set(SamplingParams.__struct_fields__) - {"max_tokens", "stop"}
    body = {"model": "m", "prompt": "x", "max_tokens": 4, "stop": ["."], **given}
    request = msgspec.convert(body, CompletionRequest, strict=False)
    assert sampling_params(request) == SamplingParams(max_tokens=4, stop=["."], **given)
