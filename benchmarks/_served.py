"""Our side: a `tinkex serve` process with default settings, driven by the official client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks._model import NAME, model_folder
from benchmarks._sides import LOGS, ROOT, import_path, start
from benchmarks._workload import Request, Row, even_rows

os.environ["TINKER_TELEMETRY"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

SERVE = [sys.executable, "-m", "tinkex", "serve", "--port", "0"]
DATA = ROOT / ".bench" / "data"
KEY = "tml-benchmark-key-0123456789abcdef"


class Served:
    """A running server and a session of the official client on it.

    with Served() as ours:
        training = ours.training(rank=8)
        seconds = timed(lambda: ours.step(training, rows))
    """

    def __init__(self, model: Path | None = None, options: Sequence[str] = ()) -> None:
        self._options = options
        self._data_dir = _new_data_dir()
        self._model = model or model_folder()
        self._services: list[Any] = []
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log = (LOGS / "server.log").open("wb")

    def __enter__(self) -> Served:
        began = time.perf_counter()
        self._process = start(
            [
                *(*SERVE, "--data-dir", str(self._data_dir)),
                *("--model", f"{NAME}={self._model}", *self._options),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **import_path(), "TINKEX_BOOTSTRAP_KEY": KEY},
            text=True,
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if "Listening on" not in first:
            raise RuntimeError(f"the server did not start; see {LOGS / 'server.log'}")
        self.url = first.split()[-1]
        self._wait_ready()
        self.ready_s = time.perf_counter() - began
        return self

    def __exit__(self, *_: object) -> None:
        for service in self._services:
            with suppress(Exception):  # the session has ended already
                service.close("success").result(10)
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._data_dir, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The server's process id; its engine is a child."""
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        """The server's data folder."""
        return self._data_dir

    @property
    def service(self) -> Any:
        """The official client's session."""
        return self._services[0] if self._services else self.new_service()

    def new_service(self) -> Any:
        """Opens another session, as another user's process would."""
        import tinker

        self._services.append(tinker.ServiceClient(base_url=self.url, api_key=KEY))
        return self._services[-1]

    def training(self, rank: int, **options: Any) -> Any:
        """Returns a client that trains a new adapter: attention, MLP and
        unembedding, as by default."""
        return self.service.create_lora_training_client(base_model=NAME, rank=rank, **options)

    def saved_adapter(self, rank: int, seed: int = 0) -> str:
        """Returns the path of a saved adapter, one training step away from the base model."""
        training = self.training(rank, seed=seed)
        rows = [
            ([token % 200 for token in tokens], weights) for tokens, weights in even_rows(1, 16)
        ]
        step(training, datums(rows), learning_rate=1e-3)
        return str(training.save_weights_for_sampler("saved").result().path)

    def adapters(self, count: int, rank: int) -> tuple[list[Any], tuple[Path, ...]]:
        """Returns samplers of new adapters, and the PEFT folders from which other
        sides load them."""
        samplers, folders = [], []
        known = set(self._adapter_folders())
        for seed in range(count):
            path = self.saved_adapter(rank, seed)
            samplers.append(self.service.create_sampling_client(model_path=path))
            (new,) = set(self._adapter_folders()) - known
            known.add(new)
            folders.append(new)
        return samplers, tuple(folders)

    def _adapter_folders(self) -> list[Path]:
        return [path.parent for path in self._data_dir.glob("checkpoints/*/adapter_config.json")]

    def _wait_ready(self) -> None:
        # Health is answered once models are loaded, so this is when work can begin.
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended; see {LOGS / 'server.log'}")
            try:
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.01)


def _new_data_dir() -> Path:
    """Makes a new data folder; deletes those that interrupted benchmarks left behind."""
    DATA.mkdir(parents=True, exist_ok=True)
    for left in DATA.iterdir():
        if not Path(f"/proc/{left.name.partition('-')[0]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=DATA))


def datums(rows: Sequence[Row]) -> list[Any]:
    """Returns rows as the official client's examples."""
    from tinker import types

    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData(
                    data=tokens[1:], dtype="int64", shape=[len(weights)]
                ),
                "weights": types.TensorData(data=weights, dtype="float32", shape=[len(weights)]),
            },
        )
        for tokens, weights in rows
    ]


def step(training: Any, data: list[Any], learning_rate: float = 1e-4) -> float:
    """Returns the seconds of a training step: both requests sent at once, then both awaited."""
    from tinker import types

    began = time.perf_counter()
    scored = training.forward_backward(data, "cross_entropy")
    stepped = training.optim_step(types.AdamParams(learning_rate=learning_rate))
    scored.result()
    stepped.result()
    return time.perf_counter() - began


def run(
    samplers: Sequence[Any], requests: Sequence[Request], wanted: Container[int] | None = None
) -> list[float]:
    """Sends each request at its time; returns when each was answered, in seconds since the start.

    With `wanted`, by place, only those are waited for; the others are cancelled then.
    """
    began = time.perf_counter()
    ends = [0.0] * len(requests)
    sent = []
    for i, request in enumerate(requests):
        time.sleep(max(0.0, request["at"] - (time.perf_counter() - began)))
        sent.append(send(samplers, request))
        sent[i].add_done_callback(lambda _, i=i: ends.__setitem__(i, time.perf_counter() - began))
    for i, handle in enumerate(sent):
        if wanted is None or i in wanted:
            lengths = [len(each.tokens) for each in handle.result().sequences]
            assert lengths == [requests[i]["max_tokens"]] * requests[i]["samples"], lengths
    for handle in sent:
        handle.cancel()
    return ends


def send(samplers: Sequence[Any], request: Request) -> Any:
    """Sends one sampling request without stop conditions; returns its future."""
    from tinker import types

    return samplers[request["adapter"]].sample(
        prompt=types.ModelInput.from_ints(request["tokens"]),
        num_samples=request["samples"],
        sampling_params=types.SamplingParams(
            max_tokens=request["max_tokens"], temperature=1.0, stop=[]
        ),
    )
