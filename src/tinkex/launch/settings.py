"""The launcher's settings, from the server. They are on a command line and hold no secrets."""

from __future__ import annotations

import hashlib

import msgspec

from tinkex.errors import ConfigError
from tinkex.version import __version__

__all__ = ["LaunchSettings", "Reservation", "WorkerSpec", "actor_name", "parse_samplers"]


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor runs `tinkex worker`."""

    join: str
    models: tuple[str, ...]  # NAME=PATH_OR_ID, found on the node
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    losses: tuple[str, ...] = ()
    tls_ca: str | None = None  # a file on the node, or system; None for no encryption


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a worker reserves, and the nodes that it may run on."""

    cpus: float = 1.0
    gpus: float = 0.0
    labels: dict[str, str] = {}

    def __str__(self) -> str:
        parts = [f"{self.cpus:g} CPU", f"{self.gpus:g} GPU"]
        return ", ".join(parts + [f"label {key}={value}" for key, value in self.labels.items()])


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted workers, their Ray cluster and their server."""

    address: str  # of Ray: HOST:PORT, or auto
    namespace: str
    server_url: str
    token_file: str  # of workers
    operator_token_file: str
    worker_port: int
    spec: WorkerSpec  # with join "" for the address of this Ray node and `worker_port`
    reservation: Reservation = Reservation()
    num_trainers: int = 1
    min_samplers: int = 1
    max_samplers: int = 1
    target_sample_tokens: int = 20_000
    idle_s: float = 300.0
    look_every_s: float = 2.0
    log_level: int = 20


def parse_samplers(text: str) -> tuple[int, int]:
    """`MIN:MAX`, or one number for both.

    Raises:
        ConfigError: it is something else.
    """
    low, _, high = text.partition(":")
    try:
        first, last = int(low), int(high or low)
    except ValueError:
        first, last = -1, -1
    if not 0 <= first <= last:
        raise ConfigError(
            f"--samplers={text!r} is not MIN:MAX with 0 <= MIN <= MAX.",
            hint="Write 1:8, or 2 for always two.",
            code="usage",
        )
    return first, last


def actor_name(
    role: str, index: int, spec: WorkerSpec, reservation: Reservation, token: str
) -> str:
    """The name of an actor. It depends on version, server address, model, reservation and token, so
    that a launcher replaces actors for which one of these has changed, and no others."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    given = msgspec.json.encode([__version__, spec, reservation, digest], order="sorted")
    return f"{role}-{index}-{hashlib.sha256(given).hexdigest()[:12]}"
