"""Losses of the user's own: traced like the official client does, and true to autograd."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.data import loss_of
from tests.support.fixtures import Connect, make_config
from tests.support.http_server import Request
from tests.support.loopback import LoopbackServer
from tests.unit.client import losses
from tinkex import Datum, ModelInput, Runtime, ServiceClient, TensorData, ValidationError
from tinkex.client.loss_trace import trace
from tinkex.errors import APIError, TinkexError


@pytest.fixture
def remote() -> Iterator[LoopbackServer]:
    """A server that runs custom losses itself."""
    with LoopbackServer(flags={"custom_loss_server_side": True}) as running:
        yield running


def service_of(server: LoopbackServer, runtime: Runtime) -> ServiceClient:
    return ServiceClient(config=make_config(server), runtime=runtime)


def example(length: int, **inputs: Any) -> Datum:
    tokens = list(range(1, length + 1))
    return Datum(ModelInput.from_ints(tokens), {"target_tokens": tokens, **inputs})


def floats(*values: float) -> TensorData:
    return TensorData(list(values), "float32", [len(values)])


def tensor(data: TensorData) -> torch.Tensor:
    return data.to_torch()


# Tracing.


def test_uploads_are_those_of_the_official_client(remote: LoopbackServer, runtime: Runtime) -> None:
    pytest.importorskip("tinker")
    service = service_of(remote, runtime)
    for fn, ranks in losses.TRACEABLE:
        service.create_custom_loss(fn, ranks).result(20)
    ours = remote.calls("create_custom_loss")
    official = [sys.executable, "-m", "tests.unit.client.official_losses", remote.url]
    subprocess.run(official, check=True, timeout=60, env={**os.environ, "TINKER_TELEMETRY": "0"})
    theirs = remote.calls("create_custom_loss")[len(ours) :]
    assert [without_session(call) for call in ours] == [without_session(call) for call in theirs]
    assert len(ours) == len(losses.TRACEABLE)


def without_session(call: Request) -> dict[str, Any]:
    return {key: value for key, value in call.decoded.items() if key != "session_id"}


@pytest.mark.parametrize("fn", losses.UNTRACEABLE, ids=lambda fn: fn.__name__)
def test_what_cannot_be_traced_is_refused_by_name(fn: Any) -> None:
    with pytest.raises(ValidationError, match=fn.__name__):
        trace(fn, {"logprobs": 1})


@pytest.mark.parametrize(("fn", "ranks"), losses.MISDECLARED)
def test_what_is_declared_wrongly_is_refused(fn: Any, ranks: Any) -> None:
    with pytest.raises(ValidationError):
        trace(fn, ranks)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ValidationError, match="not a str"):
        trace("loss", {"logprobs": 1})  # type: ignore[arg-type]


def test_an_int_beyond_64_bits_is_refused() -> None:
    def huge(logprobs: Any) -> Any:
        return logprobs.sum() * 2**70, {}

    with pytest.raises(ValidationError, match="int"):
        trace(huge, {"logprobs": 1})


def test_another_library_is_refused() -> None:
    module = torch.fx.symbolic_trace(lambda logprobs: (torch.exp(logprobs).sum(), {}))
    node = next(each for each in module.graph.nodes if each.op == "call_function")
    node.target = subprocess.getoutput

    from tinkex.client.loss_trace import encode_graph

    with pytest.raises(ValidationError, match="subprocess"):
        encode_graph("shell", module.graph)


def test_nothing_is_sent_for_a_loss_that_cannot_be_traced(
    server: LoopbackServer, connect: Connect
) -> None:
    with pytest.raises(ValidationError):
        connect().create_custom_loss(losses.branches, {"logprobs": 1}).result(10)
    assert server.requests == []


def test_without_torch_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValidationError, match="pip install torch"):
        trace(losses.neg_ll, {"logprobs": 1, "weights": 1})


def test_torch_is_imported_only_when_a_loss_is_traced() -> None:
    code = (
        "import sys, tinkex; tinkex.ServiceClient; tinkex.TrainingClient; tinkex.LossHandle;"
        "tinkex.PerDatumLossFn; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Where the server runs the loss.


def test_a_loss_is_uploaded_once_for_each_session_and_code(
    remote: LoopbackServer, runtime: Runtime
) -> None:
    def same(logprobs: Any, weights: Any) -> Any:
        return losses.neg_ll(logprobs, weights)

    service = service_of(remote, runtime)
    ranks = {"logprobs": 1, "weights": 1}
    handles = [service.create_custom_loss(fn, ranks) for fn in (losses.neg_ll, same) * 3]
    first, *others = [handle.result(10) for handle in handles]
    assert {other.loss_id for other in others} == {first.loss_id}
    assert remote.count("create_custom_loss") == 1
    assert first.key == others[0].key == trace(same, ranks).key

    other_ranks = service.create_custom_loss(losses.neg_ll, {"logprobs": 2, "weights": 2})
    elsewhere = service_of(remote, runtime).create_custom_loss(losses.neg_ll, ranks)
    assert other_ranks.result(10).key != first.key
    assert elsewhere.result(10).session_id != first.session_id
    assert remote.count("create_custom_loss") == 3
    numbers = [call.decoded["custom_loss_seq_id"] for call in remote.calls("create_custom_loss")]
    assert sorted(numbers) == [0, 0, 1]


def test_the_batch_is_sent_unchanged_with_the_loss_id(
    remote: LoopbackServer, runtime: Runtime
) -> None:
    service = service_of(remote, runtime)
    training = service.create_lora_training_client(base_model="tiny/model")
    handle = service.create_custom_loss(losses.neg_ll, {"logprobs": 1, "weights": 1}).result(10)
    data = [example(2, weights=floats(1.0, 2.0), extra=floats(7.0))]
    result = training.forward_backward_custom(data, handle).result(10)
    assert "surrogate_loss:sum" not in result.metrics
    (call,) = remote.calls("forward_backward")
    assert (call.decoded.loss_fn, call.decoded.forward_only) == ("custom", False)
    assert call.decoded.loss_fn_config == {"loss_id": handle.loss_id}
    assert set(call.decoded.data[0].loss_fn_inputs) == {"target_tokens", "weights", "extra"}


def test_an_upload_that_failed_is_tried_anew_under_a_new_number(
    remote: LoopbackServer, runtime: Runtime
) -> None:
    remote.on("create_custom_loss").reply(status=422, body=b'{"detail": "no"}')
    service = service_of(remote, runtime)
    ranks = {"logprobs": 1, "weights": 1}
    with pytest.raises(APIError, match="no"):
        service.create_custom_loss(losses.neg_ll, ranks).result(10)
    assert service.create_custom_loss(losses.neg_ll, ranks).result(10).loss_id is not None
    numbers = [call.decoded["custom_loss_seq_id"] for call in remote.calls("create_custom_loss")]
    assert numbers == [0, 1]


def test_a_graph_that_the_server_does_not_run_runs_here(
    remote: LoopbackServer, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    service = service_of(remote, runtime)
    refusal = b'{"detail": "torch.fft is not allowed", "code": "bad-custom-loss"}'
    remote.on("create_custom_loss").reply(status=422, body=refusal)
    with caplog.at_level("WARNING", logger="tinkex"):
        handle = service.create_custom_loss(losses.neg_ll, {"logprobs": 1, "weights": 1}).result(20)
    assert handle.loss_id is None
    assert "neg_ll" in caplog.text
    assert "torch.fft" in caplog.text
    training = service.create_lora_training_client("tiny/model")
    data = [example(3, weights=[1.0, 0.5, 0.0])]
    metrics = training.forward_backward_custom(data, handle).result(20).metrics
    assert "surrogate_loss:sum" in metrics


def test_cancelling_one_wait_for_an_upload_leaves_the_others_alone(
    remote: LoopbackServer, runtime: Runtime
) -> None:
    held = remote.on("create_custom_loss").hold()
    service = service_of(remote, runtime)
    ranks = {"logprobs": 1, "weights": 1}
    first = service.create_custom_loss(losses.neg_ll, ranks)
    remote.wait_for("create_custom_loss")
    second = service.create_custom_loss(losses.neg_ll, ranks)
    assert first.cancel()
    held.release()
    assert second.result(10).loss_id is not None
    assert remote.count("create_custom_loss") == 1


# Where it runs here.


@pytest.mark.parametrize("is_async", [False, True])
def test_gradients_and_metrics_are_those_of_autograd(
    server: LoopbackServer, connect: Connect, is_async: bool
) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model="tiny/model")
    handle = service.create_custom_loss(losses.scaled, {"logprobs": 1, "beta": 0}).result(10)
    assert handle.loss_id is None
    assert server.count("create_custom_loss") == 0
    betas = (0.5, 0.25)
    data = [
        example(length, beta=TensorData([beta], "float32", []))
        for length, beta in zip((2, 3), betas, strict=True)
    ]
    if is_async:

        async def run() -> Any:
            return await (await training.forward_backward_custom_async(data, handle))

        result = asyncio.run(run())
    else:
        result = training.forward_backward_custom(data, handle).result(10)

    expected, total = [], 0.0
    for row, beta in zip(result.loss_fn_outputs, betas, strict=True):
        logprobs = tensor(row["logprobs"]).requires_grad_(True)
        loss = (logprobs * beta).sum() ** 2
        loss.backward()
        expected.append(-logprobs.grad)
        total += float(loss.detach())
    scoring, sent = server.calls("forward_backward")
    assert scoring.decoded.forward_only
    for datum, gradient in zip(sent.decoded.data, expected, strict=True):
        torch.testing.assert_close(tensor(datum.loss_fn_inputs["weights"]), gradient)
    assert result.metrics["loss:sum"] == pytest.approx(total)
    assert result.metrics["custom/beta:mean"] == pytest.approx(0.375)
    assert "surrogate_loss:sum" in result.metrics


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([example(2)], "no loss_fn_inputs\\['weights'\\]"),
        ([example(2, weights=TensorData([1.0] * 4, "float32", [2, 2]))], "rank 2"),
        ([Datum(ModelInput.from_ints([1]), {"weights": [1.0]})], "target_tokens"),
        (
            [Datum(ModelInput.from_ints([1]), {"target_tokens": [[1, 2]], "weights": [1.0]})],
            "target_tokens",
        ),
    ],
)
def test_examples_that_do_not_fit_are_refused_before_anything_is_sent(
    server: LoopbackServer, connect: Connect, data: list[Datum], words: str
) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model="tiny/model")
    handle = service.create_custom_loss(losses.neg_ll, {"logprobs": 1, "weights": 1}).result(10)
    with pytest.raises(ValidationError, match=words):
        training.forward_backward_custom(data, handle).result(10)
    assert server.count("forward_backward") == 0


def test_a_handle_serves_its_own_session_only(connect: Connect) -> None:
    handle = connect().create_custom_loss(losses.neg_ll, {"logprobs": 1, "weights": 1}).result(10)
    training = connect().create_lora_training_client(base_model="tiny/model")
    with pytest.raises(ValidationError, match=handle.session_id):
        training.forward_backward_custom([example(1, weights=floats(1.0))], handle).result(10)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda logprobs: (logprobs, {}), "scalar"),
        (lambda logprobs: (logprobs.sum(), {"custom/x:sum": logprobs}), "custom/x:sum"),
        (lambda logprobs: (logprobs.detach().sum(), {}), "no gradient"),
    ],
)
def test_a_loss_that_is_no_loss_is_refused(connect: Connect, fn: Any, words: str) -> None:
    service = connect()
    training = service.create_lora_training_client(base_model="tiny/model")
    handle = service.create_custom_loss(fn, {"logprobs": 1}).result(10)
    with pytest.raises(ValidationError, match=words):
        training.forward_backward_custom([example(2)], handle).result(10)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda data, logprobs: logprobs[0].sum(), "returns \\(loss, metrics\\)"),
        (lambda data, logprobs: (1.0, {}), "scalar tensor"),
        (lambda data, logprobs: (logprobs[0], {}), "scalar tensor"),
        (lambda data, logprobs: (logprobs[0].detach().sum(), {}), "no gradient"),
    ],
)
def test_a_batch_loss_that_is_no_loss_is_refused(connect: Connect, fn: Any, words: str) -> None:
    training = connect().create_lora_training_client(base_model="tiny/model")
    with pytest.raises(ValidationError, match=words):
        training.forward_backward_custom([example(2)], fn).result(10)


def test_a_batch_loss_sees_all_examples_and_unread_ones_have_no_gradient(
    server: LoopbackServer, connect: Connect
) -> None:
    training = connect().create_lora_training_client(base_model="tiny/model")

    def first_only(data: list[Datum], logprobs: list[torch.Tensor]) -> Any:
        assert len(data) == len(logprobs) == 2
        return logprobs[0].exp().sum(), {"seen": 2, "a tensor": logprobs[1].sum()}

    result = training.forward_backward_custom([example(2), example(3)], first_only).result(10)
    assert result.metrics["seen"] == 2.0
    assert result.metrics["a tensor"] == pytest.approx(-loss_of([3]))
    sent = server.calls("forward_backward")[1].decoded.data
    assert tensor(sent[1].loss_fn_inputs["weights"]).tolist() == [0.0, 0.0, 0.0]


def test_an_error_of_the_loss_itself_comes_through(connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model="tiny/model")

    def broken(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        training.forward_backward_custom([example(2)], broken).result(10)


def test_a_server_without_a_loss_in_its_metrics_is_an_error(
    server: LoopbackServer, connect: Connect
) -> None:
    from tinkex.client.custom_loss import Surrogate, relabel
    from tinkex.types import ForwardBackwardOutput

    output = ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=[], metrics={})
    with pytest.raises(TinkexError, match="loss:sum"):
        relabel(output, Surrogate([], 1.0, {}))
