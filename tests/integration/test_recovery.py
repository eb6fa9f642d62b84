"""Recovery against the scripted server, which answers as the hosted service may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.support.waiting import wait_until
from tinkex import (
    RecoveryFailedError,
    RecoveryMonitor,
    RecoveryPolicy,
    TrainingClient,
    WatchedRun,
    telemetry,
)
from tinkex.errors import PromiseLostError, TinkexError, ValidationError

GONE = {"detail": "There is no such run."}


@pytest.fixture
def events() -> Iterator[list[str]]:
    """The names of recovery events, without what they have in common."""
    found: list[str] = []
    telemetry.attach(
        "recovery", "tinkex.recovery.*", lambda event, *_: found.append(event.split(".")[-1])
    )
    yield found
    telemetry.detach("recovery")


def policy(**changes: Any) -> RecoveryPolicy:
    return RecoveryPolicy(**{"base_s": 0.001, "max_s": 0.001, "poll_s": None} | changes)


def saved_run(connect: Connect, monitor_policy: RecoveryPolicy) -> tuple[Any, WatchedRun]:
    """A monitor, and a run of it with one checkpoint."""
    service = connect()
    training: TrainingClient = service.create_lora_training_client("tiny/model")
    training.save_state("one").result()
    monitor = RecoveryMonitor(service, monitor_policy)
    return monitor, monitor.watch(training)


def test_a_run_the_server_calls_corrupted(server: LoopbackServer, connect: Connect) -> None:
    _, run = saved_run(connect, policy())
    state = run_state(server, corrupted=True)
    server.on("get_training_run").reply(200, json_body=state).times(1)
    recovered = run.recover()
    assert recovered.reason == "corrupted"
    run.client.forward_backward(make_data([3]), CROSS_ENTROPY).result()
    loads = server.calls("load_weights")
    assert loads[-1].decoded["path"] == recovered.checkpoint.tinker_path
    assert loads[-1].decoded["optimizer"] is True


def run_state(server: LoopbackServer, **changes: Any) -> dict[str, Any]:
    return {**server.service._run(server.model()), **changes}


def test_a_run_the_server_does_not_know(
    server: LoopbackServer, connect: Connect, events: list[str]
) -> None:
    """Its record is gone, its list of checkpoints with it; the last one seen is still there."""
    _, run = saved_run(connect, policy())
    with pytest.raises(RecoveryFailedError, match="not lost"):
        run.recover()
    server.on("get_training_run").reply(404, json_body=GONE).always()
    server.on("list_checkpoints").reply(404, json_body=GONE).always()
    recovered = run.recover()
    assert recovered.reason == "lost"
    assert recovered.checkpoint.checkpoint_id == "weights/one"
    assert events == ["detected", "started", "checkpoint_selected", "client_created", "completed"]


def test_a_promise_that_was_lost(server: LoopbackServer, connect: Connect) -> None:
    _, run = saved_run(connect, policy())
    rule = server.on("retrieve_future").reply(410, json_body={"detail": "gone"}).always()
    error = run.client.forward_backward(make_data([3]), CROSS_ENTROPY).outcome(60).error
    rule.off()
    assert isinstance(error, PromiseLostError)
    assert run.recover(error).reason == "lost"


def test_attempts_go_on_over_errors_and_end(
    server: LoopbackServer, connect: Connect, events: list[str]
) -> None:
    reported: list[Any] = []
    _, run = saved_run(
        connect, policy(max_attempts=3, on_exhausted=lambda *given: reported.append(given))
    )
    old = run.client
    server.on("get_training_run").reply(404, json_body=GONE).always()
    server.on("create_model").reply(403, json_body={"detail": "not now"}).always()
    with pytest.raises(RecoveryFailedError) as failed:
        run.recover()
    assert run.client is old
    assert events.count("exhausted") == 1
    assert events[-1] == "exhausted"
    assert reported == [(old.model_id, failed.value)]


def test_an_outage_costs_attempts_and_no_checkpoint(
    server: LoopbackServer, connect: Connect, events: list[str]
) -> None:
    _, run = saved_run(connect, policy(max_attempts=5))
    server.on("get_training_run").reply(404, json_body=GONE).always()
    refusal = {"detail": "busy"}
    headers = {"x-should-retry": "false"}
    server.on("create_model").reply(503, json_body=refusal, headers=headers).times(2)
    assert run.recover().attempts == 3
    assert events.count("failed") == 2
    assert events.count("checkpoint_selected") == 3


def test_a_session_that_ended_is_replaced(server: LoopbackServer, connect: Connect) -> None:
    _, run = saved_run(connect, policy(max_attempts=1))
    server.on("get_training_run").reply(410, json_body={"detail": "gone"}).times(1)
    server.on("create_model").reply(410, json_body={"detail": "The session has ended."}).times(1)
    sessions = server.count("create_session")
    recovered = run.recover()
    assert recovered.reason == "ended"
    assert server.count("create_session") == sessions + 1
    recovered.client.forward_backward(make_data([3]), CROSS_ENTROPY).result()


def test_the_monitor_gives_up_once(
    server: LoopbackServer, connect: Connect, events: list[str]
) -> None:
    monitor, _ = saved_run(connect, policy(poll_s=0.01, max_attempts=1))
    with monitor:
        server.on("create_model").reply(403, json_body={"detail": "no"}).always()
        server.on("get_training_run").reply(404, json_body=GONE).always()
        wait_until(lambda: "exhausted" in events)
        looked = server.count("get_training_run")
    assert events.count("exhausted") == 1
    assert server.count("get_training_run") == looked


def test_an_unreachable_server_is_no_lost_run(server: LoopbackServer, connect: Connect) -> None:
    monitor, run = saved_run(connect, policy(poll_s=0.01))
    headers = {"x-should-retry": "false"}
    server.on("get_training_run").reply(503, json_body={}, headers=headers).always()
    num_before = server.count("get_training_run")
    with monitor:
        server.wait_for("get_training_run", num_before + 3)
        with pytest.raises(TinkexError):
            run.recover()
    assert run.last_recovery is None


def test_a_run_that_is_left_alone(server: LoopbackServer, connect: Connect) -> None:
    monitor, run = saved_run(connect, policy(poll_s=0.01))
    with monitor:
        server.wait_for("get_training_run", 1)
        monitor.unwatch(run)
        monitor.unwatch(run)
        server.on("get_training_run").reply(404, json_body=GONE).always()
    assert run.last_recovery is None


def test_a_callback_that_fails_stops_nothing(
    server: LoopbackServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("no such number")

    _, run = saved_run(connect, policy(on_detected=broken, on_recovered=broken))
    server.on("get_training_run").reply(404, json_body=GONE).times(1)
    assert run.recover().client is run.client
    assert "no such number" in caplog.text


def test_a_function_that_fails_to_choose_ends_the_recovery_and_not_the_monitor(
    server: LoopbackServer, connect: Connect, events: list[str]
) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("no such number")

    monitor, run = saved_run(connect, policy(poll_s=0.01, checkpoint=broken))
    with monitor:
        server.on("get_training_run").reply(404, json_body=GONE).always()
        wait_until(lambda: "exhausted" in events)
        other = monitor.watch(run.client)
        wait_until(lambda: events.count("exhausted") == 2)
    with pytest.raises(RecoveryFailedError, match="ZeroDivisionError: no such number"):
        other.recover()


def test_a_monitor_closes_while_a_server_does_not_answer(
    server: LoopbackServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tinkex.client.recovery._CLOSE_S", 0.05)
    monitor, _ = saved_run(connect, policy(poll_s=0.01))
    frozen = server.on("get_training_run").hold().always()
    num_before = server.count("get_training_run")
    server.wait_for("get_training_run", num_before + 1)
    monitor.close()
    server.on("get_training_run").reply(403, json_body={"detail": "no"}).always()
    frozen.release()
    wait_until(lambda: not any(each.name == "tinkex-recovery" for each in threading.enumerate()))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"base_s": 5.0, "max_s": 1.0}, "max_s=1.0"),
        ({"poll_s": 0}, "poll_s=0"),
        ({"poll_s": float("inf")}, "poll_s=inf"),
        ({"base_s": float("nan")}, "base_s=nan"),
        ({"max_s": "60"}, "max_s='60'"),
        ({"max_attempts": 2.5}, "max_attempts=2.5"),
        ({"checkpoint": "oldest"}, "'oldest'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RecoveryPolicy(**settings)


def test_pauses_double_up_to_their_bound() -> None:
    chosen = RecoveryPolicy(base_s=1.0, max_s=5.0)
    assert [chosen.pause_s(attempt) for attempt in range(1, 5)] == [1.0, 2.0, 4.0, 5.0]
