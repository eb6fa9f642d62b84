"""Extensions go only to servers that announce them; others are sent nothing."""

from __future__ import annotations

import pytest

from tests.support.data import PROMPT
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import types
from tinkex.errors import ValidationError

MODEL = "tiny/model"
OFFICIAL = {"max_tokens": 2, "temperature": 1.0, "top_k": -1, "top_p": 1.0}


@pytest.mark.parametrize(
    "extension",
    [
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {3: 1.0}},
    ],
    ids=str,
)
def test_a_server_that_announces_nothing_is_sent_nothing(
    extension: dict[str, float], server: LoopbackServer, connect: Connect
) -> None:
    sampling = connect().create_sampling_client(base_model=MODEL)
    (name,) = extension

    with pytest.raises(ValidationError, match=f"does not announce the sampling parameter {name}"):
        sampling.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, **extension)).result(10)  # type: ignore[arg-type]
    assert server.count("asample") == 0

    sampling.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)).result(20)
    sent = server.calls("asample")[-1].decoded
    assert sent["sampling_params"] == OFFICIAL
    assert sent["seq_id"] == 0  # the refused request took no number


def test_an_announced_extension_is_sent(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["extensions"] = ["sampling.logit_bias", "sampling.of_the_future"]
    sampling = connect().create_sampling_client(base_model=MODEL)

    sampling.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, logit_bias={3: 1})).result(20)
    sent = server.calls("asample")[-1].decoded["sampling_params"]
    assert sent == {**OFFICIAL, "logit_bias": {"3": 1.0}}

    with pytest.raises(ValidationError, match="min_p") as caught:
        sampling.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, min_p=0.2)).result(10)
    assert caught.value.code == "unknown-sampling-parameter"
