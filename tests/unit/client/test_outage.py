"""While a server cannot be reached there is one line of warning, and one when it is back."""

from __future__ import annotations

import logging

import pytest

from tests.support.data import PROMPT
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import AdamParams, Clock
from tinkex.client.outage import Outage
from tinkex.errors import APIConnectionError, APITimeoutError

STEP = AdamParams(learning_rate=1e-4)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", ["optim_step", "retrieve_future"])
def test_an_outage_is_announced_once_and_its_end_once(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    training = connect().create_lora_training_client("tiny/model")
    server.on(path).drop_before_answer().times(6)
    training.optim_step(STEP).result(20)
    lost, back = said(caplog)
    assert path in lost
    assert server.url in lost
    assert lost.endswith("Retrying; accepted requests are not lost.")
    assert back.startswith(f"Connected to {server.url} again after ")


def test_a_single_broken_connection_is_not_spoken_of(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    training = connect().create_lora_training_client("tiny/model")
    for _ in range(3):
        server.on("optim_step").drop_before_answer()
        training.optim_step(STEP).result(20)
    assert said(caplog) == []


def test_what_is_not_sent_again_announces_nothing(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = connect().create_sampling_client(base_model="tiny/model")
    server.on("asample").drop_before_answer().times(3)
    for _ in range(3):
        with pytest.raises(APIConnectionError):
            sampling.compute_logprobs(PROMPT).result(20)
    assert said(caplog) == []


def test_silence_is_announced_at_the_first_timeout(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(Clock(), "http://127.0.0.1:1")
    outage.note_retry(APIConnectionError("GET /x got no complete answer."))
    assert said(caplog) == []
    for _ in range(2):
        outage.note_retry(APITimeoutError("GET /x had no answer within 60 s."))
    assert len(said(caplog)) == 1
    outage.note_answer()
    outage.note_answer()
    assert len(said(caplog)) == 2
