"""`ServiceClient.push_to_hub`: from a real server to a stand-in of the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

import tinkex
from tests.cli.hub import Hub
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import PermissionDeniedError, ValidationError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

pytest.importorskip("huggingface_hub")
# The hub's client is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ADAPTER = {"adapter_config.json", "adapter_model.safetensors", "tinkex_adapter.json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("hub")
    model = make_tiny_model(folder / "tiny", "smollm")
    models = (ServedModel(name="org/tiny", source=str(model)),)
    config = ServerConfig(data_dir=folder / "data", port=0, models=models, num_threads=1)
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as client:
        yield client


@pytest.fixture
def training(service: tinkex.ServiceClient) -> tinkex.TrainingClient:
    return service.create_lora_training_client("org/tiny", rank=4)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    # The stand-in has the hub's older way to upload large files.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with Hub() as running:
        yield running


def checkpoints_of(service: tinkex.ServiceClient) -> set[str]:
    found = service.create_rest_client().list_user_checkpoints().result().checkpoints
    return {each.tinker_path for each in found}


def test_a_state_is_exported_and_uploaded_and_nothing_is_left(
    service: tinkex.ServiceClient, training: tinkex.TrainingClient, hub: Hub
) -> None:
    path = training.save_state("state").result().path
    before = checkpoints_of(service)
    url = service.push_to_hub(path, "me/adapter", hf_token="hf_secret", hub_url=hub.url).result()
    assert url.startswith(f"{hub.url}/me/adapter/commit/")
    files = hub.files["me/adapter", "main"]
    assert set(files) == ADAPTER | {"README.md"}
    assert json.loads(files["adapter_config.json"])["r"] == 4
    assert b'base_model: "org/tiny"' in files["README.md"]
    assert hub.repos["me/adapter"]["visibility"] == "private"
    assert "Bearer hf_secret" in hub.tokens
    assert checkpoints_of(service) == before
    rest = service.create_rest_client()
    session = rest.get_session(service.session_id).result()
    (made,) = set(session.training_run_ids) - {training.model_id}
    wait_until(lambda: rest.get_training_run(made).result().ended)


def test_an_export_is_uploaded_as_it_is_under_the_name_of_its_run(
    service: tinkex.ServiceClient, training: tinkex.TrainingClient, hub: Hub
) -> None:
    path = training.save_weights_external("export").result().path
    more = {"public": True, "model_card": False, "hf_token": "hf_secret", "hub_url": hub.url}
    assert asyncio.run(service.push_to_hub_async(path, **more)).startswith(hub.url)
    name = f"me/tinkex-tiny-{training.model_id.replace(':', '-')}"
    assert set(hub.files[name, "external_weights-export"]) == ADAPTER
    assert hub.repos[name]["visibility"] == "public"
    assert path in checkpoints_of(service)


def test_a_refusal_is_the_future_s_error_and_nothing_is_left(
    service: tinkex.ServiceClient, training: tinkex.TrainingClient, hub: Hub
) -> None:
    path = training.save_weights_for_sampler("sampler").result().path
    before = checkpoints_of(service)
    hub.refuse_files = True
    broken = service.push_to_hub(path, "me/adapter", hub_url=hub.url).outcome()
    assert isinstance(broken.error, PermissionDeniedError), "not the RuntimeError of its client"
    hub.refuse = 401
    refused = service.push_to_hub(path, "me/adapter", hub_url=hub.url).outcome()
    assert isinstance(refused.error, PermissionDeniedError)
    assert "hf auth login" in refused.error.hint
    assert checkpoints_of(service) == before
    wrong = service.push_to_hub(path, "no repository", hub_url=hub.url).outcome()
    assert isinstance(wrong.error, ValidationError)
