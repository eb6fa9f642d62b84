"""Every optimizer through the whole server with our client: saved, resumed, replayed, refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.driving import MODEL, Http
from tinkex import ServiceClient, TrainingClient, types
from tinkex.errors import RequestFailedError, UnprocessableEntityError
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

IDS = [5, 9, 33, 71, 12, 90, 41, 8]
CONFIGS: dict[str, types.OptimizerConfig] = {
    "adamw": types.AdamOptimizerConfig(),
    "dimuon": types.DimuonOptimizerConfig(),
    "sgd": types.SgdOptimizerConfig(),
}
PARAMS: dict[str, types.OptimParams] = {
    "adamw": types.AdamParams(learning_rate=0.01, weight_decay=0.1),
    "dimuon": types.DimuonParams(learning_rate=0.01, grad_clip_norm=1.0),
    "sgd": types.SgdParams(learning_rate=1e-3, nesterov=True, weight_decay=0.1),
}
OTHER = {"adamw": "sgd", "sgd": "dimuon", "dimuon": "adamw"}


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("optimizer-server")


@pytest.fixture(scope="module")
def tiny_server(
    tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tiny_data,
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        scheduler=SchedulerConfig(snapshot_after_operations=5),
    )
    with EmbeddedServer(config) as server:
        yield server


@pytest.fixture
def service(tiny_server: EmbeddedServer) -> Iterator[ServiceClient]:
    with ServiceClient(base_url=tiny_server.base_url, api_key=tiny_server.api_key) as client:
        yield client


def _run(service: ServiceClient, name: str, seed: int = 3) -> TrainingClient:
    return service.create_lora_training_client("tiny", rank=4, seed=seed, optimizer=CONFIGS[name])


def _forward(training: TrainingClient, number: int) -> float:
    ids = IDS[number % 3 :]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )
    return training.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"]


def _step(training: TrainingClient, name: str, number: int = 0) -> tuple[float, float]:
    loss = _forward(training, number)
    return loss, (training.optim_step(PARAMS[name]).result().metrics or {})["grad_norm"]


@pytest.mark.parametrize("name", CONFIGS)
def test_kill_9_in_the_middle_changes_no_bit(
    name: str, service: ServiceClient, tiny_server: EmbeddedServer, tiny_data: Path
) -> None:
    quiet, killed = _run(service, name), _run(service, name)
    expected = [_step(quiet, name, number) for number in range(8)]
    seen = [_step(killed, name, number) for number in range(4)]
    seen.append((_forward(killed, 4), 0.0))  # a gradient waits for its step
    assert any((tiny_data / "snapshots").iterdir()), "recovery begins with a snapshot"
    tiny_server.kill()
    tiny_server.start()
    norm = (killed.optim_step(PARAMS[name]).result().metrics or {})["grad_norm"]
    seen[4] = (seen[4][0], norm)
    seen += [_step(killed, name, number) for number in range(5, 8)]
    assert seen == expected
    assert expected[0][0] > expected[3][0] > expected[6][0], "the same text, and its loss falls"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_state_resumes_bit_for_bit(name: str, service: ServiceClient) -> None:
    training = _run(service, name)
    for number in range(2):
        _step(training, name, number)
    path = training.save_state("state").result().path
    resumed = service.create_training_client_from_state_with_optimizer(path)
    loaded = _run(service, name, seed=9)
    _step(loaded, name)
    loaded.load_state_with_optimizer(path).result()
    wanted = service.create_lora_training_client("tiny", optimizer=CONFIGS[name]).get_info()
    assert resumed.get_info().optimizer_config == wanted.optimizer_config
    expected = [_step(training, name, number) for number in range(3)]
    for client in (resumed, loaded):
        assert [_step(client, name, number) for number in range(3)] == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_state_of_another_optimizer_is_refused(name: str, service: ServiceClient) -> None:
    training = _run(service, name)
    _step(training, name)
    path = training.save_state("state").result().path
    other = _run(service, OTHER[name])
    with pytest.raises(RequestFailedError, match=f"optimizer is '{OTHER[name]}', not '{name}'"):
        other.load_state_with_optimizer(path).result()
    other.load_state(path).result()
    assert _step(other, OTHER[name])[1] > 0
    fresh = service.create_training_client_from_state(path, optimizer=CONFIGS[OTHER[name]])
    assert fresh.get_info().optimizer_config.type == OTHER[name]
    assert _step(fresh, OTHER[name])[1] > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_of_another_optimizer_are_refused(name: str, service: ServiceClient) -> None:
    training = _run(service, name)
    _forward(training, 0)
    with pytest.raises(UnprocessableEntityError, match=f"not '{OTHER[name]}'") as caught:
        training.optim_step(PARAMS[OTHER[name]]).result()
    assert caught.value.code == "wrong-optimizer"
    assert (training.optim_step(PARAMS[name]).result().metrics or {})["grad_norm"] > 0


def test_creating_a_run_from_state_of_another_optimizer_is_422(http: Http) -> None:
    model = http.model()
    saved = http.result(
        http.post("save_weights", {"model_id": model, "path": "s", "seq_id": 1})["request_id"]
    )
    request = {"session_id": http.session(), "model_seq_id": 0, "path": saved["path"]}
    body = {**request, "optimizer": True, "optimizer_config": {"type": "sgd"}}
    refused = http.post("load_weights", body, status=422)
    assert "holds the state of the optimizer 'adamw', not of 'sgd'" in str(refused)


@pytest.mark.parametrize("config", [{"type": "lion"}, {"type": "dimuon", "version": 2}, {}, "sgd"])
def test_an_unknown_optimizer_is_refused(config: object, http: Http) -> None:
    request = {"session_id": http.session(), "model_seq_id": 0, "base_model": MODEL}
    answer = http.call("POST", "create_model", {**request, "optimizer_config": config})
    assert answer.status_code in (400, 422)
    assert "optimizer_config" in answer.text


@pytest.mark.parametrize(
    "params",
    [
        {"type": "sgd", "learning_rate": -1.0},
        {"type": "sgd", "learning_rate": 0.1, "momentum": 1.0},
        {"type": "sgd"},
        {"type": "lion", "learning_rate": 0.1},
    ],
)
def test_bad_parameters_are_refused(params: dict[str, object], http: Http) -> None:
    body = {"model_id": http.model(), "seq_id": 1, "optimizer_params": params}
    answer = http.call("POST", "optim_step", body)
    assert answer.status_code in (400, 422)
    assert "optimizer_params" in answer.text or "must be" in answer.text
