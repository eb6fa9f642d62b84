"""One server with the real engine and tiny models, and OpenAI's own client in front of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

import tinkex
from tests.support.keys import new_tenant_key
from tests.support.waiting import wait_until
from tinkex import types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.tokenizers.tokenizer import Tokenizer, load_tokenizer

MODEL = "tiny"
PLAIN = "plain"  # the same model without a chat template
PREFIX = "/v1"

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {% for tool in tools %}{{ tool.function.name }} "
    "{% endfor %}as <tool_call>...</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking %}<think>{% endif %}{% endif %}"
)
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
ASK_CALL = [{"role": "user", "content": "1+2?"}]
ASK_JSON = [{"role": "user", "content": "json"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
JSON = '{"a": 1}'


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template shows tools."""
    made = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=2048)
    _change_template(made, TEMPLATE)
    return made


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openai-server")


@pytest.fixture(scope="session")
def server(
    folder: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    plain = make_tiny_model(tmp_path_factory.mktemp("models") / "plain")
    _change_template(plain, None)
    config = ServerConfig(
        data_dir=data_dir,
        port=0,
        models=(
            ServedModel(name=MODEL, source=str(folder)),
            ServedModel(name=PLAIN, source=str(plain)),
        ),
        num_threads=1,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="session")
def make_client(server: EmbeddedServer, data_dir: Path) -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes a client of OpenAI's: of the first tenant, or of a new one."""
    opened: list[openai.OpenAI] = []

    def make(*, new_tenant: bool = False, prefix: str = PREFIX) -> openai.OpenAI:
        key = new_tenant_key(data_dir) if new_tenant else server.api_key
        url = server.base_url + prefix
        opened.append(openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture(scope="session")
def client(make_client: Callable[..., openai.OpenAI]) -> openai.OpenAI:
    return make_client()


# Our clients end with the module: other tests stop the runtime that the clients of a process share.
@pytest.fixture(scope="module")
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    """Our own client of the same tenant."""
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as opened:
        yield opened


@pytest.fixture(scope="module")
def sampler(service: tinkex.ServiceClient) -> tinkex.SamplingClient:
    return service.create_sampling_client(base_model=MODEL)


class Trained(NamedTuple):
    """A run that learnt two answers by heart: a call of `add`, and some JSON."""

    run_id: str
    path: str
    name: str


@pytest.fixture(scope="session")
def trained(server: EmbeddedServer, tokenizer: Tokenizer) -> Trained:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service:
        return _train(service, tokenizer)


def _train(service: tinkex.ServiceClient, tokenizer: Tokenizer) -> Trained:
    training = service.create_lora_training_client(MODEL, rank=16, seed=1)
    data = [
        _lesson(tokenizer, ASK_CALL, CALL, [ADD]),
        _lesson(tokenizer, ASK_JSON, JSON, None),
    ]
    losses: list[float] = []

    def knows_them() -> bool:
        step = training.forward_backward(data, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=2e-2)).result(60)
        losses.append(step.result(60).metrics["loss:sum"])
        return losses[-1] < 0.5

    wait_until(knows_them, timeout_s=50)
    saved = training.save_weights_for_sampler("learnt").result(60)
    return Trained(run_id=training.model_id, path=str(saved.path), name="learnt")


def _lesson(
    tokenizer: Tokenizer, messages: list[dict[str, str]], answer: str, tools: Any
) -> types.Datum:
    prompt = tokenizer.apply_chat_template(messages, tools, add_generation_prompt=True)
    ids = [*prompt, *tokenizer.encode(answer), tokenizer.eos_token_id]
    weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(ids) - len(prompt))
    return types.Datum(
        types.ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], "weights": weights}
    )


def _change_template(folder: Path, template: str | None) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["chat_template"]
    if template is not None:
        settings["chat_template"] = template
    path.write_text(json.dumps(settings))
