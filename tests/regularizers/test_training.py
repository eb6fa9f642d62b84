"""Regularized training on a real server with a tiny model, against hand-written torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinkex
from tinkex import telemetry, types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.losses import BUILT_IN
from tinkex.regularizers import KL, L2, Entropy, Own, RegularizedLoss
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

TOKENS, TARGETS, WEIGHTS = [5, 9, 17, 3, 40], [9, 17, 3, 40, 8], [0.0, 1.0, 0.5, 2.0, 1.0]
REFERENCE = [-4.0, -5.0, -6.0, -5.5, -4.5]
Train = Callable[[], tinkex.TrainingClient]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tinkex.ServiceClient]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("data"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
    )
    with (
        EmbeddedServer(config) as server,
        tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as client,
    ):
        yield client


@pytest.fixture
def train(service: tinkex.ServiceClient) -> Train:
    """Makes runs that begin alike."""
    return lambda: service.create_lora_training_client("tiny", rank=4, seed=1)


def example(**inputs: Any) -> types.Datum:
    given = {"target_tokens": TARGETS, "weights": WEIGHTS, **inputs}
    return types.Datum(types.ModelInput.from_ints(TOKENS), given)


def floats(values: list[float]) -> types.TensorData:
    return types.TensorData(values, "float32", [len(values)])


def logprobs_after(
    training: tinkex.TrainingClient, step: Callable[[], Any], steps: int = 2
) -> list[float]:
    """What the model scores the example with after some steps."""
    for _ in range(steps):
        step()
        training.optim_step(types.AdamParams(learning_rate=0.01)).result()
    scored = training.forward([example()], "cross_entropy").result()
    return [float(each) for each in scored.loss_fn_outputs[0]["logprobs"].to_torch()]


def test_training_equals_that_with_a_loss_written_by_hand(train: Train) -> None:
    data = [example(reference_logprobs=floats(REFERENCE))]
    regularized = RegularizedLoss(
        "cross_entropy",
        [
            L2(weight=0.05, reduction="sum", where="weights"),
            KL(weight=0.5, reduction="sum", where="weights"),
            Entropy(weight=0.2, reduction="sum"),
        ],
    )

    def by_hand(_data: Any, logprobs: Any) -> Any:
        lp, weights = logprobs[0], torch.tensor(WEIGHTS)
        counted = weights != 0
        distance = (lp - torch.tensor(REFERENCE))[counted]
        # The slopes of 0.5 * KL and of -0.2 * entropy at sampled targets, as losses of their own.
        kl, entropy = 0.25 * distance.square().sum(), 0.1 * lp.square().sum()
        return -(weights * lp).sum() + 0.05 * lp[counted].square().sum() + kl + entropy, {}

    ours, theirs = train(), train()
    after = logprobs_after(ours, lambda: ours.forward_backward_custom(data, regularized).result())
    wanted = logprobs_after(theirs, lambda: theirs.forward_backward_custom(data, by_hand).result())
    plain = train()
    without = logprobs_after(
        plain, lambda: plain.forward_backward([example()], "cross_entropy").result()
    )
    assert after == pytest.approx(wanted, abs=1e-5)
    assert after != pytest.approx(without, abs=1e-2), "the penalties must matter"


RL_INPUTS = {
    "logprobs": [-5.1, -5.0, -5.2, -5.3, -4.9],
    "advantages": [0.0, 1.0, -0.5, 0.7, 1.2],
    "sequence_ratio_mask": [0.0, 1.0, 1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_loss_without_penalties_is_that_of_the_server(train: Train, name: str) -> None:
    loss = BUILT_IN[name]
    inputs = {
        each.name: {"weights": WEIGHTS, **RL_INPUTS}[each.name]
        for each in loss.inputs
        if each.is_required
    }
    data = [types.Datum(types.ModelInput.from_ints(TOKENS), {"target_tokens": TARGETS, **inputs})]
    here, there = train(), train()
    local = here.forward_backward_custom(data, RegularizedLoss(name, [])).result()
    remote = there.forward_backward(data, name).result()
    for metric in ("loss:sum", *(each.name for each in loss.metrics)):
        assert local.metrics[metric] == pytest.approx(remote.metrics[metric], abs=1e-5)
    after = logprobs_after(here, lambda: None, steps=1)
    assert after == pytest.approx(logprobs_after(there, lambda: None, steps=1), abs=1e-5)


def test_metrics_and_events_of_a_training_step(train: Train) -> None:
    events: dict[str, Any] = {}
    for name in ("tinkex.custom_loss.*", "tinkex.regularizer.*"):
        telemetry.attach(
            name, name, lambda e, measured, about, _: events.update({e: (measured, about)})
        )
    try:
        loss = RegularizedLoss("cross_entropy", [L2(weight=0.05)])
        metrics = train().forward_backward_custom([example()], loss).result().metrics
    finally:
        telemetry.detach("tinkex.custom_loss.*")
        telemetry.detach("tinkex.regularizer.*")
    assert metrics["loss:sum"] == pytest.approx(
        metrics["base_loss"] + metrics["regularizer/l2/contribution"]
    )
    measured, about = events["tinkex.custom_loss.stop"]
    assert about["regularizer_count"] == 1
    assert measured["regularizer_total"] == metrics["regularizer/total"]
    assert measured["loss_total"] == metrics["loss:sum"]
    assert measured["duration"] > 0
    assert events["tinkex.custom_loss.start"][1]["regularizer_count"] == 1
    assert events["tinkex.regularizer.compute.stop"][0]["value"] == metrics["regularizer/l2/value"]


def test_a_failed_penalty_trains_nothing(train: Train) -> None:
    def broken(_data: Any, _logprobs: Any) -> Any:
        raise ZeroDivisionError("no such number")

    training = train()
    loss = RegularizedLoss("cross_entropy", [Own(fn=broken, weight=1.0)])
    with pytest.raises(ZeroDivisionError):
        training.forward_backward_custom([example()], loss).result()
    untouched = train()
    assert logprobs_after(training, lambda: None, 1) == logprobs_after(untouched, lambda: None, 1)


def test_an_awaited_step_takes_coroutines(train: Train) -> None:
    async def calm(_data: Any, logprobs: Any) -> Any:
        await asyncio.sleep(0)
        return logprobs[0].square().mean()

    async def main() -> dict[str, float]:
        loss = RegularizedLoss("cross_entropy", [Own(fn=calm, weight=2.0)])
        step = await train().forward_backward_custom_async([example()], loss)
        return (await step).metrics

    metrics = asyncio.run(main())
    assert metrics["regularizer/calm/contribution"] == pytest.approx(
        2 * metrics["regularizer/calm/value"]
    )
