"""What the launcher is told by the server. It is on a command line: no secret is in it."""

from __future__ import annotations

import hashlib

import msgspec

__all__ = ["LaunchSettings", "WorkerSpec", "actor_name", "parse_samplers"]


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor runs `tinkex worker`."""

    join: str
    models: tuple[str, ...]  # NAME=PATH_OR_ID, found on the node
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    losses: tuple[str, ...] = ()


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers to keep on which cluster, and the server they are for."""

    address: str  # of Ray: HOST:PORT, or auto
    namespace: str
    server_url: str
    token_file: str  # of workers
    operator_token_file: str
    worker_port: int
    spec: WorkerSpec  # with join "" for the address of this Ray node and `worker_port`
    num_trainers: int = 1
    min_samplers: int = 1
    max_samplers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    labels: dict[str, str] = {}
    target_sample_tokens: int = 20_000
    idle_s: float = 300.0
    look_every_s: float = 2.0


def parse_samplers(text: str) -> tuple[int, int]:
    """`MIN:MAX`, or one number for both.

    Raises:
        ValueError: it is something else.
    """
    low, _, high = text.partition(":")
    first, last = int(low), int(high or low)
    if not 0 <= first <= last:
        raise ValueError(f"{text!r} is not MIN:MAX with 0 <= MIN <= MAX")
    return first, last


def actor_name(role: str, index: int, spec: WorkerSpec, token: str) -> str:
    """The name of an actor. It changes with what the actor was given, so that a launcher replaces
    actors of another server address, model or token, and leaves the others alone."""
    given = msgspec.json.encode([spec, hashlib.sha256(token.encode()).hexdigest()])
    return f"{role}-{index}-{hashlib.sha256(given).hexdigest()[:12]}"
