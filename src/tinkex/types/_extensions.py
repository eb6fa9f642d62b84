"""Names of the extensions, as a server announces them in its client config: one list for all.

An extension is a part of the protocol that only Tinkex servers have. A client sends one only to a
server that announces its name.
"""

from __future__ import annotations

from collections.abc import Collection

from tinkex.types._parameters import extensions
from tinkex.types.optimizers import ALL_OPTIMIZERS, PROTOCOL_OPTIMIZERS
from tinkex.types.sampling import SamplingParams

__all__ = [
    "FUTURES_QUEUE_STATE",
    "LORA_ALPHA",
    "RUNS_METRICS",
    "SAMPLING_STREAM",
    "USAGE",
    "all_extensions",
    "optimizers_of",
    "sampling_extension",
]

LORA_ALPHA = "lora.alpha"
"""`alpha` in the `lora_config` of `create_model`."""

FUTURES_QUEUE_STATE = "futures.queue_state"
"""`known_queue_state` in `retrieve_futures`, and the queue's state in its answer."""

RUNS_METRICS = "runs.metrics"
"""Series of metrics, names, tags and status of runs, and what users log."""

USAGE = "usage"
"""Usage by key, run and day."""
SAMPLING_STREAM = "sampling.stream"
"""`stream` in `asample`, and the route `stream_sample`."""

_OPTIMIZER, _SAMPLING = "optimizer.", "sampling."


def all_extensions() -> list[str]:
    """Returns the extensions that a server of this version announces."""
    optimizers = [each for each in ALL_OPTIMIZERS if each not in PROTOCOL_OPTIMIZERS]
    return [
        FUTURES_QUEUE_STATE,
        LORA_ALPHA,
        RUNS_METRICS,
        USAGE,
        SAMPLING_STREAM,
        *(f"{_OPTIMIZER}{each}" for each in optimizers),
        *map(sampling_extension, extensions(SamplingParams)),
    ]


def optimizers_of(announced: Collection[str]) -> list[str]:
    """Returns the optimizers of a server that announces these extensions, by their names."""
    more = [each.removeprefix(_OPTIMIZER) for each in announced if each.startswith(_OPTIMIZER)]
    return [*PROTOCOL_OPTIMIZERS, *more]


def sampling_extension(parameter: str) -> str:
    """Returns the name under which a sampling parameter is announced."""
    return f"{_SAMPLING}{parameter}"
