"""Losses on a real server: those of an installed package, and every one for rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinkex
from tests.server.driving import Http, null_config
from tests.server.test_start_errors import refused, serve
from tests.support.loss_package import FOCAL, write_package
from tinkex import types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.losses import BUILT_IN
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

TOKENS, TARGETS, WEIGHTS = [5, 9, 17, 3, 40], [9, 17, 3, 40, 8], [0.0, 1.0, 0.5, 2.0, 1.0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("site"), "outside-losses", focal=FOCAL)


@pytest.fixture(scope="module")
def server(
    tiny: Path, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("data"),
        port=0,
        models=(ServedModel(name="tiny", source=str(tiny)),),
        num_threads=1,
        losses=("focal",),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        with EmbeddedServer(config) as running:
            yield running


@pytest.fixture
def training(server: EmbeddedServer) -> Iterator[tinkex.TrainingClient]:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service:
        yield service.create_lora_training_client("tiny", rank=4, seed=1)


def datum(weights: list[float] = WEIGHTS) -> types.Datum:
    inputs = {"target_tokens": TARGETS, "weights": weights}
    return types.Datum(types.ModelInput.from_ints(TOKENS), inputs)


def run(training: Any, weights: list[float] = WEIGHTS, **config: float) -> dict[str, float]:
    metrics = training.forward_backward([datum(weights)], "focal", config).result().metrics
    assert isinstance(metrics, dict)
    return metrics


def expected_loss(tiny: Path, gamma: float) -> float:
    """The loss of the base model, which a new adapter does not change, by plain torch."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        lp = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    lp = lp[torch.arange(len(TARGETS)), torch.tensor(TARGETS)]
    return float(-(torch.tensor(WEIGHTS) * (1 - lp.exp()) ** gamma * lp).sum())


def test_the_loss_is_announced(server: EmbeddedServer) -> None:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service:
        assert service.get_server_capabilities().losses == sorted([*BUILT_IN, "focal"])


def test_it_trains_and_survives_a_crash(
    server: EmbeddedServer, training: tinkex.TrainingClient, tiny: Path
) -> None:
    first = run(training)
    assert first["loss:sum"] == pytest.approx(expected_loss(tiny, 2.0), rel=1e-4)
    assert run(training, gamma=0.0)["loss:sum"] == pytest.approx(expected_loss(tiny, 0.0), rel=1e-4)
    training.optim_step(types.AdamParams(learning_rate=0.02)).result()
    trained = run(training)
    assert trained["loss:sum"] < first["loss:sum"]
    assert trained["probability:mean"] > first["probability:mean"]
    server.kill()
    server.start()
    assert run(training) == trained, "the log was replayed with the same loss"


@pytest.mark.parametrize(
    "loss_fn", [each.name for each in BUILT_IN.values() if each.needs_advantages]
)
def test_rollouts_fit_every_loss_of_reinforcement_learning(
    training: tinkex.TrainingClient, loss_fn: str
) -> None:
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=6, seed=3)
    answers = sampler.sample(types.ModelInput.from_ints(TOKENS), 2, params).result().sequences
    data = [
        types.Datum.from_rollout(TOKENS, answer, advantage, loss_fn=loss_fn)
        for answer, advantage in zip(answers, (1.0, -0.5), strict=True)
    ]
    assert training.forward_backward(data, loss_fn).result().metrics["ratio:mean"] == pytest.approx(
        1.0, abs=1e-3
    )
    training.optim_step(types.AdamParams(learning_rate=0.01)).result()
    output = training.forward_backward(data, loss_fn).result()
    drifts = [
        np.subtract(found["logprobs"].data[-len(answer.tokens) :], answer.logprobs)
        for found, answer in zip(output.loss_fn_outputs, answers, strict=True)
    ]
    of_sequence = np.mean([np.exp(drift.mean()) for drift in drifts])
    of_tokens = np.mean([np.exp(drift).mean() for drift in drifts])
    assert of_sequence != pytest.approx(of_tokens, abs=1e-5)
    expected = of_sequence if loss_fn == "gspo" else of_tokens
    assert output.metrics["ratio:mean"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "config", "words"),
    [
        ([0.0, 1.0, -1.0, 1.0, 1.0], {}, r"weights\[2\]=-1.0 must be between 0 and 10"),
        (WEIGHTS, {"gamma": 6.0}, "gamma=6.0 must be between 0 and 5"),
        (WEIGHTS, {"beta": 1.0}, "has no config key 'beta'. Known keys: gamma"),
    ],
)
def test_its_bounds_are_those_of_the_server(
    training: tinkex.TrainingClient, weights: list[float], config: dict[str, float], words: str
) -> None:
    with pytest.raises(tinkex.RequestFailedError, match=words):
        run(training, weights, **config)


def test_an_installed_loss_that_is_not_named_is_unknown(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    with EmbeddedServer(null_config(tmp_path)) as running:
        import httpx

        with httpx.Client(base_url=running.base_url, timeout=60) as client:
            http = Http(client, running.api_key)
            assert http.get("get_server_capabilities")["losses"] == sorted(BUILT_IN)
            model_id = http.model()
            refusal = http.poll(http.train(model_id, 1, loss_fn="focal").json()["request_id"])
    assert "loss_fn='focal' is not known here" in refusal.text


def test_a_loss_that_is_not_installed_ends_the_start(tmp_path: Path, site: Path) -> None:
    options = ["--port", "0", "--data-dir", str(tmp_path), "--device", "null", "--loss", "hinge"]
    ended = serve(*options, PYTHONPATH=str(site))
    refused(ended, "'hinge'", "not offered by any installed package", "offered: focal")
