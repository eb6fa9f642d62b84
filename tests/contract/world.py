"""What a contract scenario has: a real server with tiny models, the official client, a judge.

Scenarios run in a process of their own (`run_scenarios`), since the official client leaves threads
and sockets open until its process ends. Each asserts through the client's public API and says
how close its numbers came; `python -m tests.contract.<scenarios>` shows both by hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import traceback
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
import torch
import transformers
from tinker import types

from tests.engine import work
from tests.engine.oracle import Oracle
from tinkex.engine.convert.tiny_model import TinyShape, make_tiny_model
from tinkex.engine.interface import TrainDatum
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.store import Database, keys

SHAPES: tuple[TinyShape, ...] = ("smollm", "qwen2", "qwen3", "llama", "mistral")
OTHER = "granite"
MODEL = "smollm"  # tied embeddings: the shape in which most can go wrong
TWIN = "org/twin"  # another name of the same base
CONTEXT = 512
EOS = 258
IDS = work.tokens(13, 3).tolist()
REFUSED = (tinker.RequestFailedError, tinker.APIStatusError)


class World:
    """A running server, clients of it, oracles of its models, and how close numbers came."""

    def __init__(self, server: EmbeddedServer, data_dir: Path, models: Path) -> None:
        self.base_url = server.base_url
        self.api_key = server.api_key
        self.data_dir = data_dir
        self.gaps: dict[str, float] = {}
        self.sent = _record_requests()
        self._models = models
        self._loading = threading.Lock()
        self._warming = threading.Lock()
        self._warm_states: dict[str, str] = {}

    @cached_property
    def service(self) -> tinker.ServiceClient:
        """A client that scenarios share."""
        return self.connect()

    def connect(self, api_key: str | None = None, **options: Any) -> tinker.ServiceClient:
        """A client with a session of its own."""
        return tinker.ServiceClient(
            base_url=self.base_url, api_key=api_key or self.api_key, **options
        )

    def rest(self, api_key: str | None = None) -> tinker.RestClient:
        """A client for lists and checkpoints."""
        return tinker.RestClient(base_url=self.base_url, api_key=api_key or self.api_key)

    def get(self, path: str) -> Any:
        """A JSON answer with the fields that the official client drops."""
        headers = {"X-API-Key": self.api_key}
        answer = httpx.get(f"{self.base_url}/api/v1/{path}", headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def new_tenant(self) -> str:
        """The key of a new tenant, made as `tinkex keys create` makes one."""
        key = keys.new_key()
        with closing(Database(f"sqlite:///{self.data_dir / 'tinkex.db'}")) as db:
            db.write(keys.add, key, name="other")
        return key

    def base(self, shape: str = MODEL) -> Path:
        """The folder of a base model."""
        return self._models / shape

    def oracle(self, shape: str = MODEL, adapter: Path | None = None) -> Oracle:
        """transformers and peft on a base model."""
        with self._loading:  # transformers loads under global switches
            return Oracle(self.base(shape), adapter)

    def trained(self, shape: str = MODEL, **lora: Any) -> tinker.TrainingClient:
        """A new client with an adapter far from zero and an optimizer that starts anew."""
        options = {"rank": 4, "seed": 11, **lora}
        key = json.dumps([shape, options])
        with self._warming:
            if key not in self._warm_states:
                self._warm_states[key] = self._warm_up(shape, options)
        return self.service.create_training_client_from_state(self._warm_states[key])

    def _warm_up(self, shape: str, options: dict[str, Any]) -> str:
        training = self.service.create_lora_training_client(shape, **options)
        for step in range(3):
            training.forward_backward([datum(9, seed=50 + step)], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=0.02))
        return str(training.save_state("warm").result().path)

    def exported(self, training: tinker.TrainingClient, name: str = "export") -> Path:
        """The folder of the adapter as it is now, downloaded without a key."""
        return self.download(training.save_weights_external(name).result().path)

    def download(self, path: str) -> Path:
        """The files of an export, fetched by their signed links."""
        folder = Path(tempfile.mkdtemp(dir=self.data_dir.parent))
        for name, url in self.rest().get_external_weights_urls(path).result().urls.items():
            with urllib.request.urlopen(url) as answer:
                (folder / name).write_bytes(answer.read())
        return folder

    def agree(self, what: str, ours: Any, theirs: Any, atol: float) -> None:
        """Asserts that numbers agree and keeps the largest difference seen."""
        left, right = _array(ours), _array(theirs)
        assert left.shape == right.shape, (what, left.shape, right.shape)
        gap = float(np.abs(left - right).max(initial=0.0))
        self.gaps[what] = max(gap, self.gaps.get(what, 0.0))
        assert gap <= atol, f"{what}: {gap:.3g} > {atol:g}"


def datum(length: int, seed: int = 0) -> types.Datum:
    """A training example with fractional weights, some of them zero."""
    from tests.engine.work import sft_datum

    return as_datum(sft_datum(length, seed))


def as_datum(example: TrainDatum) -> types.Datum:
    """The engine tests' example as the official client sends it."""
    return types.Datum(
        model_input=types.ModelInput.from_ints(example.tokens.tolist()),
        loss_fn_inputs={
            name: types.TensorData.from_numpy(
                array.astype(np.int64 if name == "target_tokens" else np.float32)
            )
            for name, array in example.inputs.items()
        },
    )


def prompt(tokens: Any) -> types.ModelInput:
    """A prompt of these tokens."""
    return types.ModelInput.from_ints([int(token) for token in tokens])


def logprobs_of(output: types.ForwardBackwardOutput) -> np.ndarray:
    """All logprobs of an output, one after the other."""
    return np.concatenate([np.ravel(out["logprobs"].to_numpy()) for out in output.loss_fn_outputs])


def is_user_error(error: tinker.RequestFailedError | tinker.APIStatusError) -> bool:
    """Whether the caller is told to be to blame."""
    if isinstance(error, tinker.APIStatusError):
        return 400 <= error.status_code < 500
    return str(error.category.value) == "user"


SCENARIOS: dict[str, Callable[[World], None]] = {}


def scenario(run: Callable[[World], None]) -> Callable[[World], None]:
    """Registers a scenario under its function's name."""
    SCENARIOS[run.__name__] = run
    return run


def scenario_of(*cases: str) -> Callable[[Callable[[World, str], None]], None]:
    """Registers one scenario per case as `name[case]`."""

    def register(run: Callable[[World, str], None]) -> None:
        for case in cases:
            SCENARIOS[f"{run.__name__}[{case}]"] = lambda world, case=case: run(world, case)

    return register


def scored_prompt(sampler: tinker.SamplingClient, ids: list[int] = IDS) -> list[float]:
    """The logprob of each prompt token after the first."""
    return [float(score) for score in sampler.compute_logprobs(prompt(ids)).result()[1:] if score]


def run_scenarios(*, has_other_shape: bool = False) -> None:
    """Prints, as the last line, JSON of each scenario's failure (or null) and of all gaps."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")  # of the libraries that judge
    only = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="contract-") as root:
        outcome = _run_in(Path(root), only, [OTHER] if has_other_shape else [])
    if only or sys.stdout.isatty():
        for name, failure in outcome["failures"].items():
            print(f"{name}: {failure or 'ok'}")
    print(json.dumps(outcome), flush=True)


def _run_in(root: Path, only: list[str], others: list[str]) -> dict[str, Any]:
    models = root / "models"
    for shape in SHAPES:
        make_tiny_model(models / shape, shape, max_position_embeddings=CONTEXT)
    for name in others:
        _make_other(models / name)
    served = [ServedModel(name=name, source=str(models / name)) for name in (*SHAPES, *others)]
    config = ServerConfig(
        data_dir=root / "data",
        port=0,
        models=(*served, ServedModel(name=TWIN, source=str(models / MODEL))),
        num_threads=1,
    )
    with EmbeddedServer(config) as server:
        world = World(server, root / "data", models)
        world.service.get_server_capabilities()
        chosen = {
            name: run
            for name, run in SCENARIOS.items()
            if not only or any(part in name for part in only)
        }
        # One after the other: numbers are compared to the last bit, which only company of one's own
        # leaves as it is.
        failures = [_attempt(run, world) for run in chosen.values()]
        return {"failures": dict(zip(chosen, failures, strict=True)), "gaps": world.gaps}


def _make_other(folder: Path) -> None:
    """A model of a shape that runs through transformers."""
    torch.manual_seed(0)
    config = transformers.GraniteConfig(
        vocab_size=272,
        bos_token_id=0,
        eos_token_id=EOS,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        logits_scaling=3.0,
        max_position_embeddings=128,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)


def _attempt(run: Callable[[World], None], world: World) -> str | None:
    try:
        run(world)
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return None


def _record_requests() -> set[str]:
    """Fills up with the last part of the path of all that the client sends, and its encoding."""
    seen: set[str] = set()
    send = httpx.AsyncClient.send

    async def recorded(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> Any:
        name = request.url.path.rpartition("/")[2]
        seen.update({name, f"{name} {request.headers.get('content-encoding', 'plain')}"})
        return await send(self, request, **options)

    httpx.AsyncClient.send = recorded  # type: ignore[method-assign]
    return seen


def _array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().numpy()
    return np.asarray(values, dtype=np.float64)
