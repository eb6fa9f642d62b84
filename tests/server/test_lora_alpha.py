"""An adapter's alpha through the whole server: told, used, saved, resumed and replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from tests.engine.oracle import Oracle
from tests.server.driving import MODEL, Http
from tinkex import ServiceClient, TrainingClient, types
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

IDS = [5, 9, 33, 71, 12, 90, 41, 8]
PROMPT = types.ModelInput.from_ints(IDS)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


@pytest.fixture(scope="module")
def tiny_server(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("alpha-server"),
        port=0,
        models=(ServedModel(name="tiny", source=str(model_folder)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as server:
        yield server


@pytest.fixture
def service(tiny_server: EmbeddedServer) -> Iterator[ServiceClient]:
    with ServiceClient(base_url=tiny_server.base_url, api_key=tiny_server.api_key) as client:
        yield client


def _step(training: TrainingClient) -> float:
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(IDS[:-1]),
        loss_fn_inputs={"target_tokens": IDS[1:], "weights": [1.0] * (len(IDS) - 1)},
    )
    forward = training.forward_backward([datum], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=0.02)).result()
    return forward.result().metrics["loss:sum"]


def _scores(training: TrainingClient) -> list[float | None]:
    sampler = training.save_weights_and_get_sampling_client()
    return list(sampler.compute_logprobs(PROMPT).result())


def test_samplers_of_one_rank_and_different_alpha_are_what_peft_says(
    service: ServiceClient, tiny_server: EmbeddedServer, model_folder: Path, tmp_path: Path
) -> None:
    runs = {
        alpha: service.create_lora_training_client("tiny", rank=4, seed=3, alpha=alpha)
        for alpha in (4.0, 64.0)
    }
    for training in runs.values():
        for _ in range(3):
            _step(training)
    samplers = {a: run.save_weights_and_get_sampling_client() for a, run in runs.items()}
    futures = {alpha: sampler.compute_logprobs(PROMPT) for alpha, sampler in samplers.items()}
    rest = service.create_rest_client()
    for alpha, training in runs.items():
        assert training.get_info().lora_alpha == alpha
        path = training.save_weights_external(f"alpha-{alpha:g}").result().path
        folder = tmp_path / f"{alpha:g}"
        folder.mkdir()
        for name, url in rest.get_external_weights_urls(path).result().urls.items():
            (folder / name).write_bytes(httpx.get(url).content)
        assert json.loads((folder / "adapter_config.json").read_text())["lora_alpha"] == alpha
        with torch.no_grad():
            scores = Oracle(model_folder, folder).all_logprobs(np.array(IDS))
        theirs = scores[np.arange(len(IDS) - 1), IDS[1:]]
        np.testing.assert_allclose(futures[alpha].result()[1:], theirs, atol=1e-4)


def test_a_resumed_run_keeps_its_alpha_and_goes_on_bit_for_bit(service: ServiceClient) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=5, alpha=6.0)
    _step(training)
    path = training.save_state("state").result().path
    whole = service.create_training_client_from_state_with_optimizer(path)
    fresh = service.create_training_client_from_state(path)
    other = service.create_lora_training_client("tiny", rank=4)
    other.load_state(path).result()
    for resumed in (whole, fresh, other):
        assert resumed.get_info().lora_alpha == 6.0
    assert [_step(whole), _step(whole)] == [_step(training), _step(training)]
    assert service.create_lora_training_client("tiny", rank=4).get_info().lora_alpha == 32.0


def test_a_replay_after_kill_9_keeps_alpha(
    service: ServiceClient, tiny_server: EmbeddedServer
) -> None:
    runs = [
        service.create_lora_training_client("tiny", rank=4, seed=7, alpha=100.0) for _ in range(2)
    ]
    losses = [[_step(run) for _ in range(2)] for run in runs]
    assert losses[0] == losses[1]
    undisturbed = [_step(runs[0]), _scores(runs[0])]
    tiny_server.kill()
    tiny_server.start()
    assert [_step(runs[1]), _scores(runs[1])] == undisturbed


@pytest.mark.parametrize("alpha", [0, -1, 65_537, "much"])
def test_an_impossible_alpha_is_refused(alpha: object, http: Http) -> None:
    request = {"session_id": http.session(), "model_seq_id": 0, "base_model": MODEL}
    answer = http.call("POST", "create_model", {**request, "lora_config": {"alpha": alpha}})
    assert answer.status_code in (400, 422)
    assert "alpha" in answer.text
