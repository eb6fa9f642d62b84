"""With the real engine a run that is drained to another worker and back is bit-identical to one
that stayed: losses, gradients and moments that were pending, samples, and every saved file. Workers
are children of the server, or dial in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.site import config_for_site
from tests.faults.site_workers import RemoteWorkers, SiteKind
from tests.server.driving import Http, training_body
from tests.server.test_operator import Operator
from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

ROUNDS = 3
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}


class Run:
    """One model that is trained, and sampled from as it was at different times."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._session = http.session()
        request = {"session_id": self._session, "model_seq_id": 0, "base_model": "tiny"}
        created = {**request, "lora_config": {"rank": 4, "seed": 7}}
        self._model = http.result(http.post("create_model", created)["request_id"])["model_id"]
        self._seq = 0
        self._samplers: list[str] = []
        self._num_samples = 0

    def forward_backward(self) -> str:
        """The request id of a pass."""
        self._seq += 1
        body = training_body(self._model, self._seq, tokens=30, first=self._seq % 7 + 1)
        content_type = {"Content-Type": "application/x-protobuf"}
        answer = self._http.client.post(
            "/api/v1/forward_backward",
            content=body,
            headers={"X-API-Key": self._http.api_key, **content_type},
        )
        return str(answer.json()["request_id"])

    def step(self) -> str:
        """The request id of an optimizer step."""
        self._seq += 1
        return str(self._http.step(self._model, self._seq, learning_rate=1e-2)["request_id"])

    def snapshot(self) -> None:
        """Makes a sampler of the weights of this moment."""
        self._seq += 1
        request = {"sampling_session_seq_id": len(self._samplers)}
        promise = self._http.post(
            "save_weights_for_sampler", {"model_id": self._model, "seq_id": self._seq, **request}
        )
        made = self._http.result(promise["request_id"])
        self._samplers.append(made["sampling_session_id"])

    def samples(self) -> list[Any]:
        """What each sampler made so far gives, one after the other."""
        found = []
        for sampler in self._samplers:
            self._num_samples += 1
            request = {
                "prompt": PROMPT,
                "sampling_params": {"max_tokens": 5, "seed": 3},
                "num_samples": 2,
                "sampling_session_id": sampler,
                "seq_id": self._num_samples,
            }
            found.append(self.result(self._http.post("asample", request)["request_id"]))
        return found

    def save(self) -> None:
        """Saves weights and the optimizer's state."""
        self._seq += 1
        saving = {"model_id": self._model, "path": "end", "seq_id": self._seq}
        self.result(self._http.post("save_weights", saving)["request_id"])

    def result(self, request_id: str) -> Any:
        """The result of a request, which is no error."""
        found = self._http.result(request_id)
        assert "error" not in found, found
        return found


def train_in_rounds(server: EmbeddedServer, move: Callable[[], None]) -> list[Any]:
    """All that a run sees which moves in each round twice: once with a gradient pending and nothing
    under way, once in the midst of queued work."""
    found: list[Any] = []
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        run = Run(Http(client, server.api_key))
        for _ in range(ROUNDS):
            found.append(run.result(run.forward_backward()))
            move()
            queued = [run.forward_backward(), run.step()]
            for _ in range(4):
                queued += [run.forward_backward(), run.step()]
            move()
            found += [run.result(each) for each in queued]
            run.snapshot()
            found += run.samples()
        run.save()
    return found


class Drains:
    """Moves the only run of a server with two workers by draining the one that has it."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.visited: list[str] = []

    def move(self) -> None:
        """Returns when the other worker has the run."""
        models = self._models()
        holder, other = sorted(models, key=lambda name: -models[name])
        assert models == {holder: 1, other: 0}
        assert self._operator.ask("POST", f"/{other}/resume").status_code == 200
        assert self._operator.ask("POST", f"/{holder}/drain").status_code == 200
        wait_until(lambda: self._models() == {holder: 0, other: 1})
        self.visited.append(other)

    def _models(self) -> dict[str, int]:
        return {name: each["num_models"] for name, each in self._operator.workers().items()}


def saved_files(data_dir: Path) -> dict[str, str]:
    """The digest of each file of tensors of the one checkpoint there."""
    (saved,) = (data_dir / "checkpoints").iterdir()
    files = {path.name: path.read_bytes() for path in saved.glob("*.safetensors")}
    assert len(files) >= 2, "weights, and the state of the optimizer"
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


def config_of(data_dir: Path, model: Path) -> ServerConfig:
    models = (ServedModel(name="tiny", source=str(model)),)
    return ServerConfig(data_dir=data_dir, port=0, models=models, num_threads=1)


@pytest.fixture(scope="module")
def stayed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Any]:
    """What the run sees and saves that stays on the only worker."""
    data_dir = tmp_path_factory.mktemp("stayed")
    with EmbeddedServer(config_of(data_dir, tiny)) as server:
        seen = train_in_rounds(server, lambda: None)
    return seen, saved_files(data_dir)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_run_that_is_drained_to_and_fro_is_bit_identical(
    tmp_path: Path, tiny: Path, stayed: tuple[list[Any], Any], kind: SiteKind
) -> None:
    config = config_for_site(config_of(tmp_path / "data", tiny), kind, f"127.0.0.1:{free_port()}")
    with ExitStack() as stack:
        if kind == "remote":
            stack.enter_context(RemoteWorkers(config, tmp_path, has_roles=False))
        server = stack.enter_context(EmbeddedServer(config))
        operator = Operator(server, config.data_dir)
        wait_until(lambda: [e["state"] for e in operator.workers().values()] == ["ready"] * 2)
        drains = Drains(operator)
        seen = train_in_rounds(server, drains.move)
        assert len(drains.visited) == 2 * ROUNDS
        assert drains.visited[0] == drains.visited[2] != drains.visited[1], "to and fro"
    assert seen == stayed[0]
    assert saved_files(config.data_dir) == stayed[1]
