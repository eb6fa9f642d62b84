"""Every event of the list is emitted in a run, with what the documentation says it carries.

The list, the page and the code cannot drift apart: an event that nothing emits fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, make_data
from tests.support.fixtures import make_config
from tests.support.heard import Heard, hearing
from tests.support.loopback import LoopbackServer
from tinkex import (
    Config,
    RecoveryFailedError,
    RecoveryMonitor,
    RecoveryPolicy,
    RetryPolicy,
    Runtime,
    ServiceClient,
    TrainingClient,
    types,
)
from tinkex.regularizers import L2, Own, RegularizedLoss
from tinkex.telemetry import events

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "telemetry.md"
MODEL = "tiny/model"


@pytest.fixture(scope="module")
def heard() -> Iterator[list[Heard]]:
    """One run in which everything happens that there is an event for."""
    clock = FakeClock(skip_up_to=60)
    with LoopbackServer() as server, Runtime(clock=clock) as runtime, hearing("tinkex.*") as heard:
        config = make_config(server)
        service = ServiceClient(config=config, runtime=runtime)
        training = service.create_lora_training_client(MODEL)
        _train(training)
        _fail(server, training)
        _wait(server, training)
        _sample(server, service)
        _stay_silent(server, runtime, config.replace(poll_timeout_s=0.2), clock)
        _miss_a_heartbeat(server, runtime, config)
        _recover(server, service)
        yield list(heard)


def _train(training: TrainingClient) -> None:
    def squares(data: Any, logprobs: Any) -> Any:
        return sum((each**2).sum() for each in logprobs), {}

    def broken(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    training.forward_backward(make_data([2]), CROSS_ENTROPY).result(20)
    training.forward_backward_custom(make_data([2]), squares).result(20)
    training.forward_backward_custom(make_data([2]), broken).outcome(20)
    for regularizer in (L2(weight=0.5), Own(fn=broken, weight=1.0)):
        loss = RegularizedLoss(squares, [regularizer])
        training.forward_backward_custom(make_data([2]), loss).outcome(20)


def _recover(server: LoopbackServer, service: ServiceClient) -> None:
    """A run that is lost: an attempt fails and the next one does not, then none does."""
    policy = RecoveryPolicy(max_attempts=2, base_s=0.001, max_s=0.001, poll_s=None)
    training = service.create_lora_training_client(MODEL)
    training.save_state("one").result(20)
    server.on("get_training_run").reply(404, json_body={"detail": "gone"}).always()
    refusal = server.on("create_model").reply(503, headers={"x-should-retry": "false"})
    refusal.times(1)
    run = RecoveryMonitor(service, policy).watch(training)
    run.recover()
    server.on("create_model").reply(403).always()
    with pytest.raises(RecoveryFailedError):
        run.recover()


def _fail(server: LoopbackServer, training: TrainingClient) -> None:
    """A result that says so, one that is not readable, one that is refused."""
    server.on("retrieve_future").failed("out of memory", "server")
    server.on("retrieve_future").reply(200, body="[1, 2]")
    server.on("retrieve_future").reply(403)
    for _ in range(3):
        assert not training.optim_step(types.AdamParams()).outcome(20).ok


def _wait(server: LoopbackServer, training: TrainingClient) -> None:
    server.on("retrieve_future").not_ready("paused_capacity", "others come first")
    server.on("retrieve_future").reply(503)
    training.optim_step(types.AdamParams()).result(20)


def _sample(server: LoopbackServer, service: ServiceClient) -> None:
    policy = RetryPolicy(max_retries=1)
    sampling = service.create_sampling_client(base_model=MODEL, retry=policy)
    sampling.sample(PROMPT, 1, PARAMS).result(20)
    server.on("asample").drop_before_answer().times(2)
    assert not sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


def _stay_silent(
    server: LoopbackServer, runtime: Runtime, config: Config, clock: FakeClock
) -> None:
    """A server that cannot be reached, and one that does not answer, each for hours."""
    service = ServiceClient(config=config, runtime=runtime)
    training = service.create_lora_training_client(MODEL)
    cut = server.on("retrieve_future").drop_before_answer().always()
    _give_up(server, training, clock)
    cut.off()
    held = server.on("retrieve_future").hold().always()
    _give_up(server, training, clock)
    held.off()
    held.release()


def _give_up(server: LoopbackServer, training: TrainingClient, clock: FakeClock) -> None:
    count = server.count("retrieve_future")
    waiting = training.optim_step(types.AdamParams())
    server.wait_for("retrieve_future", count + 1)
    clock.advance(7200)
    assert not waiting.outcome(20).ok


def _miss_a_heartbeat(server: LoopbackServer, runtime: Runtime, config: Config) -> None:
    service = ServiceClient(config=config.replace(heartbeat_interval_s=10), runtime=runtime)
    rule = server.on("session_heartbeat").reply(503).always()
    service.create_sampling_client(base_model=MODEL)
    server.wait_for("session_heartbeat", 2)
    rule.off()
    service.close().result(20)


@pytest.mark.parametrize("event", events.ALL)
def test_every_event_of_the_list_is_emitted(heard: list[Heard], event: str) -> None:
    found = [each for each in heard if each.event == event]
    assert found, "nothing emits it"
    documented = _documented(event)
    for each in found:
        missing = documented.measurements - each.measured.keys()
        assert not missing, f"{event} without {missing}"
        assert documented.metadata <= each.about.keys(), f"{event}: {each.about}"


def test_no_event_is_emitted_that_is_not_on_the_list(heard: list[Heard]) -> None:
    assert {each.event for each in heard} <= set(events.ALL)


def test_the_page_names_the_events_that_are_emitted() -> None:
    assert set(events.ALL) <= set(_rows())


class _Row:
    """What the page says that an event carries; words in brackets are optional."""

    def __init__(self, measurements: str, metadata: str) -> None:
        self.measurements = set(re.findall(r"\w+", _required(measurements)))
        self.metadata = set(re.findall(r"\w+", _required(metadata)))


def _required(cell: str) -> str:
    return re.sub(r"\(.*?\)", "", cell)


def _documented(event: str) -> _Row:
    return _rows()[event]


def _rows() -> dict[str, _Row]:
    """The table of the page: the first name of a row is whole, the others are endings."""
    rows: dict[str, _Row] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[0].startswith("`tinkex."):
            continue
        first, *others = re.findall(r"`([^`]+)`", cells[0])
        stem = first.rpartition(".")[0]
        for name in (first, *(stem + each for each in others)):
            rows[name] = _Row(cells[1], cells[2])
    return rows
