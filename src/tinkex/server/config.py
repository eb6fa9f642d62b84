"""Everything that can be set on a server, in one place. Plain data.

A field is a flag and a variable once it has a line in `tinkex.server.settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tinkex.engine.process.liveness import HANG_S, PING_S
from tinkex.scheduler import SchedulerConfig
from tinkex.wire.limits import DEFAULT_LIMITS, Limits


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A base model: the name that clients use, and the folder or hub id of its files."""

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> ServedModel:
        """`NAME=PATH_OR_ID`, or a bare `PATH_OR_ID` that is its own name."""
        name, separator, source = text.partition("=")
        return cls(name=name, source=source) if separator else cls(name=text, source=text)


class ConnectionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections there may be, and how much one may take before it has a request."""

    max_connections: int = 4096
    max_head_bytes: int = 64 * 1024
    max_headers: int = 128
    head_timeout_s: float = 20.0
    write_timeout_s: float = 60.0


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a server runs."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    database_url: str | None = None  # default: an SQLite file in the data folder
    depot: str | None = None  # a shared folder or an object store; default: the data folder
    is_standby: bool = False  # waits until no other server leads the database, then leads
    models: tuple[ServedModel, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None  # of all workers together
    losses: tuple[str, ...] = ()  # of installed packages (entry points), beside the built-in ones
    bootstrap_key: str | None = None
    signing_secret_file: Path | None = None  # default: a file in the data folder, made if missing
    operator_token_file: Path | None = None  # default: a file in the data folder, made if missing
    worker_token_file: Path | None = None  # the same
    public_url: str | None = None  # how clients reach us, if not by the Host they send
    allowed_hosts: tuple[str, ...] = ()  # names beside loopback under which the page is served
    is_deterministic: bool = False
    has_merging: bool = True  # tenants may download base models, merged with their adapters
    has_kernels: bool = True  # compiled ones for sampling, where there is a C compiler
    verbosity: int = 0  # of the log: 1 adds a line per request, 2 also for polls
    log_format: Literal["text", "json"] = "text"
    metrics_port: int | None = None  # of its own, for Prometheus; None for none
    metrics_host: str = "127.0.0.1"
    metrics_token_file: Path | None = None  # with it, /metrics is also on the main port
    otel_endpoint: str | None = None  # OTLP/HTTP receiver of traces, without /v1/traces

    limits: Limits = DEFAULT_LIMITS
    connections: ConnectionBounds = ConnectionBounds()
    scheduler: SchedulerConfig = SchedulerConfig()

    listen_workers: str | None = None  # HOST:PORT where workers on other machines dial in
    workers_tls_cert: Path | None = None
    workers_tls_key: Path | None = None  # default: in the file of the certificate
    max_remote_workers: int = 16
    ray: str | None = None  # address of a Ray cluster that keeps workers, or auto
    trainers: int = 1  # workers on Ray that train
    samplers: str = "1:1"  # MIN:MAX workers on Ray that sample
    ray_cpus_per_worker: float = 1.0
    ray_gpus_per_worker: float = 0.0
    ray_labels: tuple[str, ...] = ()  # KEY=VALUE of the nodes to use
    ray_advertise: str | None = None  # HOST:PORT that workers on Ray dial
    ray_tls_ca: str | None = None  # certificates that they trust: a file on the nodes, or system
    ray_sampler_tokens: int = 20_000  # waiting tokens of one sampler above which one is added
    ray_idle_s: float = 300.0  # of a sampler, before it is removed
    workers: int = 1  # engine processes, which divide the cores and the memory
    lease_s: float = 10.0  # with PostgreSQL: a leader that is silent for so long is replaced
    engine_ping_s: float = PING_S
    engine_hang_s: float = HANG_S
    poll_hold_s: float = 30.0
    error_hold_s: float = 1.0
    live_stream_s: float = 3600.0  # of a live stream, after which its reader connects anew
    busy_after_s: float = 0.5  # submissions that all take longer are a standing queue: some get 429
    metadata_only_bytes: int = 4 * 1024 * 1024
    max_pending_samples: int = 20_000
    max_pending_samples_per_owner: int = 10_000
    max_pending_operations_per_owner: int = 10_000
    result_life_s: float = 24 * 3600.0
    max_result_bytes: int = 8 * 1024**3  # of one tenant
    sampler_life_s: float = 24 * 3600.0  # of ephemeral ones, since their last use
    max_sampler_bytes: int = 16 * 1024**3  # of one tenant's ephemeral ones
    session_silence_s: float = 24 * 3600.0
    sample_silence_s: float = 300.0  # 30 heartbeats
    session_life_s: float = 24 * 3600.0  # of what a session held, since its end
    record_life_s: float = 90 * 24 * 3600.0
    trim_every_s: float = 60.0
    max_depot_cache_bytes: int = 64 * 1024**3  # local copies of folders in an object store
    min_free_bytes: int = 64 * 1024**2  # on the data folder's disk
    # For deletes on a full disk: SQLite's log up to its next checkpoint (4 MiB), the pages that
    # the checkpoint adds to the database (4 MiB), and as much again for the delete itself.
    reserve_bytes: int = 16 * 1024**2
    patience_s: float = 300.0  # for clients to send requests again after a start
    download_life_s: float = 3600.0
    token_life_s: float = 3600.0
    max_token_life_s: float = 24 * 3600.0  # of tokens exchanged for tokens, since the key was shown
    drain_s: float = 20.0
    body_silence_s: float = 30.0  # how long a client may pause inside a body
    min_body_bytes_per_s: int = 1024  # and how slow it may be on average after that
    max_body_bytes_in_memory: int = 2 << 30  # bodies of all tenants being read at once

    @property
    def url_of_database(self) -> str:
        """The SQLAlchemy URL of the store."""
        return self.database_url or f"sqlite:///{self.data_dir / 'tinkex.db'}"

    @property
    def path_of_signing_secret(self) -> Path:
        """Where the secret lies that signs tokens and download links."""
        return self.signing_secret_file or self.data_dir / "signing-secret"

    @property
    def path_of_operator_token(self) -> Path:
        """Where the token lies that opens the routes for operators."""
        return self.operator_token_file or self.data_dir / "operator-token"

    @property
    def path_of_worker_token(self) -> Path:
        """Where the token lies that workers on other machines join with."""
        return self.worker_token_file or self.data_dir / "worker-token"
