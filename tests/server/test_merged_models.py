"""Merged models from a real server: by SDK, by `tinkex checkpoint merge` and as an archive."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers

import tinkex
from tests.support.data import CROSS_ENTROPY
from tinkex import types
from tinkex.cli.main import run as run_cli
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import NotFoundError, UnprocessableEntityError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

TOKENS = [5, 9, 17, 3, 40, 8, 77]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


def config_for(data_dir: Path, base: Path, **more: bool) -> ServerConfig:
    models = (ServedModel(name="tiny", source=str(base)),)
    return ServerConfig(data_dir=data_dir, port=0, models=models, num_threads=1, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config_for(tmp_path_factory.mktemp("merging"), base)) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as opened:
        yield opened


@pytest.fixture(scope="module")
def training(service: tinkex.ServiceClient) -> tinkex.TrainingClient:
    made = service.create_lora_training_client("tiny", rank=4, seed=1)
    datum = types.Datum(
        types.ModelInput.from_ints(TOKENS[:-1]),
        {"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )
    for _ in range(3):
        made.forward_backward([datum], CROSS_ENTROPY)
        made.optim_step(types.AdamParams(learning_rate=0.02)).result(60)
    return made


def scores(folder: Path) -> np.ndarray:
    """What transformers gives each token after the first."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    return logprobs[np.arange(len(TOKENS) - 1), TOKENS[1:]].numpy()


def test_a_merged_model_scores_as_the_server_samples(
    service: tinkex.ServiceClient, training: tinkex.TrainingClient, base: Path, tmp_path: Path
) -> None:
    path = training.save_weights_for_sampler("final").result(60).path
    assert path is not None
    sampler = service.create_sampling_client(model_path=path)
    expected = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result(60)[1:]
    rest, seen = service.create_rest_client(), set()
    links = rest.get_merged_model(path).result(60)
    folder = rest.download_merged_model(
        path, tmp_path / "merged", lambda name, *_: seen.add(name)
    ).result(60)
    assert seen == links.urls.keys() == {each.name for each in folder.iterdir()}
    assert sum(each.stat().st_size for each in folder.iterdir()) == links.size_bytes
    np.testing.assert_allclose(scores(folder), expected, atol=1e-4)
    assert np.abs(scores(base) - scores(folder)).max() > 0.05
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("ab") == [97, 98]
    answer = httpx.get(links.archive_url, timeout=60)
    assert len(answer.content) == int(answer.headers["content-length"])
    assert 'filename="final-merged.tar"' in answer.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        for member in archive.getmembers():
            packed = archive.extractfile(member)
            assert packed is not None
            name = member.name.removeprefix("final-merged/")
            assert packed.read() == (folder / name).read_bytes()
        assert len(archive.getmembers()) == len(seen)


def test_the_command_merges_a_training_state(
    server: EmbeddedServer,
    training: tinkex.TrainingClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = training.save_state("state").result(60).path
    given = ["--base-url", server.base_url, "--api-key", server.api_key]
    folder = tmp_path / "merged"
    merge = ["checkpoint", "merge", path, "-o", str(folder), *given]
    assert run_cli([*merge, "--json"]).exit_code == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["checkpoint_path"], shown["destination"]) == (path, str(folder))
    assert "model.safetensors" in shown["files"]
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert run_cli(merge).exit_code != 0
    assert "already exists" in capsys.readouterr().err
    assert run_cli([*merge, "--force"]).exit_code == 0


def test_links_are_signed_for_one_file(
    service: tinkex.ServiceClient, training: tinkex.TrainingClient
) -> None:
    path = training.save_state("links").result(60).path
    links = service.create_rest_client().get_merged_model(path).result(60)
    url = links.urls["config.json"]
    assert httpx.get(url).json()["model_type"] == "llama"
    for forged in (
        url.replace("config.json", "tokenizer.json"),
        url.replace("merged/", ""),
        url.replace("config.json", "archive.tar"),
        url[:-1] + ("0" if url[-1] != "0" else "1"),
    ):
        assert httpx.get(forged).status_code == 401
    service.create_rest_client().delete_checkpoint_from_tinker_path(path).result(60)
    assert httpx.get(url).status_code == 404


def test_what_cannot_be_merged_is_refused(
    server: EmbeddedServer,
    service: tinkex.ServiceClient,
    training: tinkex.TrainingClient,
    base: Path,
) -> None:
    path = training.save_weights_for_sampler("last").result(60).path
    assert path is not None
    rest = service.create_rest_client()
    with pytest.raises(NotFoundError, match="no checkpoint"):
        rest.get_merged_model(f"{path}-not").result(60)
    weights = base / "model.safetensors"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:1000])
        with pytest.raises(UnprocessableEntityError, match="cannot be read") as refused:
            rest.get_merged_model(path).result(60)
        assert refused.value.code == "not-mergeable"
    finally:
        weights.write_bytes(content)


def test_an_operator_can_keep_the_base_models(base: Path, tmp_path: Path) -> None:
    with (
        EmbeddedServer(config_for(tmp_path, base, has_merging=False)) as server,
        tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service,
    ):
        training = service.create_lora_training_client("tiny", rank=2)
        path = training.save_state("x").result(60).path
        with pytest.raises(NotFoundError, match="merges no models") as refused:
            service.create_rest_client().get_merged_model(path).result(60)
        assert refused.value.code == "no-merging"
