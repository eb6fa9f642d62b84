"""What a perfect server would have answered: the reference a history is checked against.

Runs every call on an engine in this process, one after the other, in the order in which it was
made; knows nothing of HTTP, logs, batches or crashes. Each client uses its own models, and a
path only after it was told of it, so that order is the only one there can have been.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from tinkex.engine.interface import (
    Engine,
    LoraSpec,
    OptimRequest,
    RequestError,
    SampleRequest,
    SamplingParams,
    StateScope,
    TrainDatum,
    TrainRequest,
)
from tinkex.scheduler.convert import optim_request
from tinkex.types.optimizers import AdamParams

SEQUENCE = 6
VOCABULARY = 100


class Refused(Exception):
    """A perfect server would have refused the call."""


def ids_of(number: int) -> list[int]:
    """The tokens of the training example with this number."""
    return [1 + (number * 7 + place * place) % VOCABULARY for place in range(SEQUENCE)]


class Reference:
    """The state a perfect server would have."""

    def __init__(self, engine: Engine, folder: Path, base_model: str) -> None:
        self._engine = engine
        self._folder = folder
        self._base_model = base_model
        self.checkpoints: dict[str, Path] = {}  # those that are there, by path
        self._models: set[str] = set()
        self._samplers: dict[str, str] = {}  # which id the engine knows each by

    def create_model(self, model: str, rank: int, seed: int) -> None:
        """A fresh adapter."""
        self._engine.create_adapter(model, self._base_model, LoraSpec(rank=rank, seed=seed))
        self._models.add(model)

    def create_from(self, model: str, path: str, optimizer: bool) -> None:
        """A new model that begins as a checkpoint."""
        self._models.add(model)
        self.load_state(model, path, optimizer)

    def forward(self, model: str, data: list[int]) -> dict[str, Any]:
        """Loss and logprobs of examples given by number."""
        return self._train(model, data, backward=False)

    def forward_backward(self, model: str, data: list[int]) -> dict[str, Any]:
        """The same, with gradients added."""
        return self._train(model, data, backward=True)

    def optim_step(self, model: str, learning_rate: float) -> dict[str, float]:
        """The metrics of a step."""
        self._require(model)
        params = AdamParams(learning_rate=learning_rate)
        request: OptimRequest = optim_request(model, params)
        (result,) = self._engine.optim_step([request])
        assert not isinstance(result, RequestError), result
        return result.metrics

    def save_state(self, model: str, path: str) -> None:
        """A checkpoint of weights and moments."""
        self._save(model, path, "optimizer")

    def save_sampler(self, model: str, path: str) -> None:
        """A checkpoint of weights alone."""
        self._save(model, path, "weights")

    def load_state(self, model: str, path: str, optimizer: bool) -> None:
        """The model as a checkpoint has it."""
        self._require(model)
        scope: StateScope = "optimizer" if optimizer else "weights"
        self._engine.load_adapter(model, self._base_model, self._checkpoint(path), scope)

    def save_ephemeral(self, model: str, sampler: str) -> None:
        """A sampler with the weights of this moment."""
        self._require(model)
        self._engine.snapshot(model, sampler)
        self._samplers[sampler] = sampler

    def open_sampler(self, sampler: str, path: str | None) -> None:
        """A sampler of a checkpoint, or of the base model."""
        if path is not None:
            self._engine.load_sampler(sampler, self._base_model, self._checkpoint(path))
            self._samplers[sampler] = sampler

    def sample(self, sampler: str, prompt: list[int], seed: int, count: int) -> dict[str, Any]:
        """Tokens and logprobs of `count` continuations."""
        request = SampleRequest(
            request_id="r",
            model=self._base_model,
            tokens=np.asarray(prompt, np.int32),
            sampler_id=self._samplers.get(sampler),
            num_samples=count,
            params=SamplingParams(max_tokens=3, seed=seed),
        )
        self._engine.submit_sample(request)
        finished = []
        while not finished:
            finished = self._engine.step_sampling(0.0).finished
        sequences = finished[0].sequences
        return {
            "tokens": [each.tokens.tolist() for each in sequences],
            "logprobs": digest([each.logprobs for each in sequences]),
        }

    def copy(self, path: str, copy: str) -> None:
        """The checkpoint under a second path."""
        self.checkpoints[copy] = self._checkpoint(path)

    def delete(self, path: str) -> None:
        """The checkpoint is gone."""
        self._checkpoint(path)
        del self.checkpoints[path]

    def unload(self, model: str) -> None:
        """The model is given up."""
        self._require(model)
        self._models.discard(model)

    def _train(self, model: str, data: list[int], *, backward: bool) -> dict[str, Any]:
        self._require(model)
        request = TrainRequest(
            adapter_id=model, data=[_datum(number) for number in data], backward=backward
        )
        (result,) = self._engine.forward_backward([request])
        assert not isinstance(result, RequestError), result
        return {"loss": result.metrics["loss:sum"], "logprobs": digest(result.logprobs)}

    def _save(self, model: str, path: str, scope: StateScope) -> None:
        self._require(model)
        folder = self._folder / f"{len(list(self._folder.iterdir())):06d}"
        self._engine.save_adapter(model, folder, scope)
        self.checkpoints[path] = folder

    def _checkpoint(self, path: str) -> Path:
        if path not in self.checkpoints:
            raise Refused(f"there is no {path}")
        return self.checkpoints[path]

    def _require(self, model: str) -> None:
        if model not in self._models:
            raise Refused(f"there is no {model}")


def digest(arrays: Any) -> str:
    """A short name for exactly these float32 numbers."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.asarray(array, np.float32).tobytes())
    return whole.hexdigest()[:16]


def _datum(number: int) -> TrainDatum:
    ids = ids_of(number)
    inputs = {
        "target_tokens": np.asarray(ids[1:]),
        "weights": np.ones(SEQUENCE - 1, np.float32),
    }
    return TrainDatum(tokens=np.asarray(ids[:-1], np.int32), inputs=inputs)
