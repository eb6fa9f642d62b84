"""A loss of the user's own: a Future at once, in the model's order, and its events."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

from tests.support.data import make_data
from tests.support.fixtures import Connect
from tests.support.heard import hearing
from tests.support.loopback import LoopbackServer
from tinkex import Datum, types
from tinkex.errors import InternalServerError, WouldDeadlockError

MODEL = "tiny/model"
ADAM = types.AdamParams(learning_rate=0.1)


def squares(data: list[Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, Any]]:
    return torch.stack([(each**2).sum() for each in logprobs]).sum(), {}


def test_the_future_is_there_before_the_scores_and_the_order_is_kept(
    server: LoopbackServer, connect: Connect
) -> None:
    """R4: nothing waits in the caller; the step that was asked for next sees the gradient."""
    training = connect().create_lora_training_client(MODEL)
    server.hold("forward_backward")
    passes = training.forward_backward_custom(make_data([2, 3]), squares)
    step = training.optim_step(ADAM)
    again = training.forward_backward_custom(make_data([2]), squares)
    server.wait_for("forward_backward")
    assert not passes.done()
    assert server.count("optim_step") == 0
    server.release("forward_backward")

    assert passes.result(20).metrics["loss:sum"] > 0
    assert step.result(20).metrics["gradients"] == 1
    assert again.result(20).metrics["loss:sum"] > 0
    assert server.applied() == [
        (1, "forward_backward"),
        (2, "forward_backward"),
        (3, "optim_step"),
        (4, "forward_backward"),
        (5, "forward_backward"),
    ]
    is_forward = [call.decoded.forward_only for call in server.calls("forward_backward")]
    assert is_forward == [True, False, True, False]


def test_a_loss_in_many_chunks_keeps_its_place(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["fwdbwd_max_chunk_len"] = 2
    training = connect().create_lora_training_client(MODEL)
    passes = training.forward_backward_custom(make_data([2] * 5), squares)
    step = training.optim_step(ADAM)
    assert len(passes.result(20).loss_fn_outputs) == 5
    assert step.result(20).metrics["gradients"] == 3
    assert server.applied()[-1] == (7, "optim_step")


def test_a_loss_that_fails_leaves_no_hole(server: LoopbackServer, connect: Connect) -> None:
    """Its error is the outcome; what comes after it is numbered without a gap."""

    def broken(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    def leaves(data: Any, logprobs: Any) -> Any:
        raise SystemExit(3)

    training = connect().create_lora_training_client(MODEL)
    failed = training.forward_backward_custom(make_data([2]), broken)
    left = training.forward_backward_custom(make_data([2]), leaves)
    step = training.optim_step(ADAM)
    assert step.outcome(20).ok
    with pytest.raises(ZeroDivisionError, match="mine"):
        failed.result(20)
    error = left.outcome(20).error
    assert error is not None
    assert "SystemExit" in error.message
    numbers = [number for number, _ in server.applied()]
    assert numbers == [1, 2, 3]


def test_scores_that_cannot_be_had_leave_no_hole(server: LoopbackServer, connect: Connect) -> None:
    training = connect(retry_budget_s=0.1).create_lora_training_client(MODEL)
    server.on("forward_backward").reply(500, headers={"x-should-retry": "false"})
    passes = training.forward_backward_custom(make_data([2]), squares)
    assert isinstance(passes.outcome(20).error, InternalServerError)
    server.service.refuse({"model_id": training.model_id, "seq_id": 1})
    assert training.optim_step(ADAM).outcome(20).ok


def test_the_loss_runs_in_a_thread_of_its_own_with_the_callers_context(connect: Connect) -> None:
    setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="unset")
    seen: list[Any] = []

    def loss(data: Any, logprobs: Any) -> Any:
        seen.append((threading.current_thread().name, setting.get()))
        return squares(data, logprobs)

    training = connect().create_lora_training_client(MODEL)
    setting.set("mine")
    training.forward_backward_custom(make_data([2]), loss).result(20)
    assert seen == [("tinkex-loss", "mine")]


def test_a_loss_that_calls_its_own_model_raises(connect: Connect) -> None:
    """It would wait for itself."""
    training = connect().create_lora_training_client(MODEL)
    other = connect().create_lora_training_client(MODEL)

    def asks(client: Any) -> Any:
        def loss(data: Any, logprobs: Any) -> Any:
            client.forward(make_data([2]), "cross_entropy").result(20)
            return squares(data, logprobs)

        return loss

    with pytest.raises(WouldDeadlockError, match="custom loss"):
        training.forward_backward_custom(make_data([2]), asks(training)).result(20)
    assert training.forward_backward_custom(make_data([2]), asks(other)).outcome(20).ok


def test_events_say_when_it_began_how_long_it_took_and_what_went_wrong(connect: Connect) -> None:
    def broken(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    training = connect().create_lora_training_client(MODEL)
    with hearing("tinkex.custom_loss.*") as heard:
        training.forward_backward_custom(make_data([2, 2]), squares).result(20)
        training.forward_backward_custom(make_data([2]), broken).outcome(20)

    kinds = [each.event.removeprefix("tinkex.custom_loss.") for each in heard]
    assert kinds == ["start", "stop", "start", "exception"]
    start, stop, _, exception = heard
    assert start.measured["system_time"] > 0
    assert stop.measured["duration"] >= 0
    assert stop.measured["loss_total"] > 0
    assert stop.about["num_examples"] == 2
    assert exception.measured["duration"] >= 0
    assert (exception.about["kind"], exception.about["error"]) == ("ZeroDivisionError", "mine")
