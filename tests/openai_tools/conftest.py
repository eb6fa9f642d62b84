"""One server with the real engine and a tiny model, for other people's programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tinkex
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.tokenizers.tokenizer import Tokenizer, load_tokenizer

MODEL = "tiny"


class Endpoint(NamedTuple):
    """What a program that speaks OpenAI's protocol is configured with."""

    url: str
    key: str


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="session")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("openai-tools-server"),
        port=0,
        models=(ServedModel(name=MODEL, source=str(folder)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="session")
def endpoint(server: EmbeddedServer) -> Endpoint:
    return Endpoint(url=f"{server.base_url}/v1", key=server.api_key)


@pytest.fixture(scope="session")
def sampler(server: EmbeddedServer) -> Iterator[tinkex.SamplingClient]:
    """Our own client, which has the answers that the others must get."""
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service:
        yield service.create_sampling_client(base_model=MODEL)
