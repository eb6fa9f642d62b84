"""Side: the engine itself, called in its own process without server, store or protocol."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from benchmarks._sides import serve
from benchmarks._workload import Row

from tinkex.engine.interface import (
    LoraSpec,
    OptimRequest,
    SampleRequest,
    SamplingParams,
    TrainDatum,
    TrainRequest,
)
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

_state: dict[str, Any] = {}
_ids = itertools.count()


def load(folder: str) -> None:
    """Loads an engine with default options and one model."""
    _state["engine"] = TorchEngine(EngineOptions(models={"model": folder}))


def create(rank: int) -> str:
    """Creates an adapter and returns its id."""
    adapter_id = f"adapter-{next(_ids)}"
    _state["engine"].create_adapter(adapter_id, "model", LoraSpec(rank=rank))
    return adapter_id


def step(adapter_id: str, rows: list[Row]) -> float:
    """Returns the seconds of forward_backward and optim_step."""
    request = _request(adapter_id, rows, backward=True)
    began = time.perf_counter()
    _check(_state["engine"].forward_backward([request]))
    _check(_state["engine"].optim_step([OptimRequest(adapter_id=adapter_id)]))
    return time.perf_counter() - began


def forward_backward(adapter_id: str, rows: list[Row]) -> float:
    """Returns the seconds of forward_backward alone."""
    request = _request(adapter_id, rows, backward=True)
    began = time.perf_counter()
    _check(_state["engine"].forward_backward([request]))
    return time.perf_counter() - began


def forward(adapter_id: str, rows: list[Row]) -> float:
    """Returns the seconds of scoring every position, all rows in one batch."""
    request = _request(adapter_id, rows, backward=False)
    began = time.perf_counter()
    _check(_state["engine"].forward_backward([request]))
    return time.perf_counter() - began


def first_token(tokens: list[int]) -> float:
    """Returns the seconds until the first streamed token of a prompt; the
    sample is cancelled then."""
    engine, request_id = _state["engine"], f"sample-{next(_ids)}"
    request = SampleRequest(
        request_id=request_id,
        model="model",
        tokens=np.array(tokens),
        params=SamplingParams(max_tokens=32, stop=[]),
        stream=True,
    )
    began = time.perf_counter()
    engine.submit_sample(request)
    while not engine.step_sampling().streamed:
        pass
    took_s = time.perf_counter() - began
    engine.cancel_sample(request_id)
    engine.step_sampling(0.0)
    return took_s


def _request(adapter_id: str, rows: list[Row], *, backward: bool) -> TrainRequest:
    data = [
        TrainDatum(
            tokens=np.array(tokens[:-1]),
            inputs={
                "target_tokens": np.array(tokens[1:]),
                "weights": np.array(weights, np.float32),
            },
        )
        for tokens, weights in rows
    ]
    return TrainRequest(adapter_id=adapter_id, data=data, backward=backward)


def _check(answers: list[Any]) -> None:
    for answer in answers:
        assert hasattr(answer, "metrics"), answer


if __name__ == "__main__":
    functions = (load, create, step, forward_backward, forward, first_token)
    serve({function.__name__: function for function in functions})
