"""What can be set about a server from outside: one list, from which flags and variables follow.

A setting `max_rank` is the flag `--max-rank` and the variable `TINKEX_MAX_RANK`; it is a field of
`tinkex.server.config`, `tinkex.scheduler.config` or `tinkex.wire.limits`, with its default. This
module reads no flag or variable itself: `make_config` takes the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tinkex.engine.options import DTYPES
from tinkex.launch.settings import parse_samplers
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ConnectionBounds, ServedModel, ServerConfig
from tinkex.wire.limits import Limits

__all__ = ["DTYPES", "ServerSetting", "make_config", "settings"]


class ServerSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One number or switch."""

    name: str
    default: int | float | bool
    about: str

    @property
    def flag(self) -> str:
        """Its flag."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"TINKEX_{self.name.upper()}"


_LIMITS = {
    "max_body_bytes": "Maximum size of a request body, in bytes.",
    "max_json_bytes": "Maximum size of a JSON body, in bytes.",
    "max_control_bytes": "Maximum size of a body without training data or prompt, in bytes.",
    "max_rank": "Maximum rank of a LoRA adapter.",
    "max_tokens_per_request": "Maximum tokens of all sequences of a request.",
    "max_tokens_per_sequence": "Maximum tokens of one sequence.",
    "max_datums_per_request": "Maximum examples in one request.",
    "max_num_samples": "Maximum samples of one sampling request.",
    "max_stop_sequences": "Maximum stop strings or tokens of one sampling request.",
    "max_top_k": "Maximum k of top-k logprobs.",
    "max_result_values": "Maximum numbers in one sampling result.",
    "max_dense_values": "Maximum values of a request's sparse tensors after expansion.",
    "max_metadata_bytes": "Maximum size of user metadata, in bytes.",
    "min_ttl_s": "Minimum TTL of a checkpoint, in seconds.",
    "max_ttl_s": "Maximum TTL of a checkpoint, in seconds.",
    "max_sessions_per_owner": "Maximum open sessions of one tenant.",
    "max_models_per_owner": "Maximum models in one tenant's open sessions.",
    "max_custom_losses_per_owner": "Maximum custom losses in one tenant's open sessions.",
    "max_custom_loss_bytes_per_owner": "Maximum bytes of one tenant's custom losses.",
    "max_disk_bytes_per_owner": "Disk quota of one tenant, in bytes; 0 for 80 % of the disk space "
    "that is free or used by tenants' files.",
    "max_requests_per_s": "Maximum requests of one tenant per second, on average; 0 for no limit.",
    "max_burst_requests": "Maximum requests of one tenant in a burst after a pause.",
    "max_open_requests": "Maximum open requests of one tenant, held polls included.",
    "max_open_body_bytes": "Maximum bytes of one tenant's bodies being read at once.",
}
_SERVER = {
    "max_pending_samples": "Maximum waiting sampling requests of all tenants; above it: 429.",
    "max_pending_samples_per_owner": "Maximum waiting sampling requests of one tenant.",
    "max_pending_operations_per_owner": "Maximum waiting training operations of one tenant.",
    "workers": "Engine processes on this machine, 1 to 64; they divide its cores and memory. 0 "
    "with --listen-workers: all work is done elsewhere.",
    "max_remote_workers": "Maximum workers from other machines at once.",
    "trainers": "With --ray: workers that train.",
    "ray_cpus_per_worker": "With --ray: CPUs that a worker reserves.",
    "ray_gpus_per_worker": "With --ray: GPUs that a worker reserves.",
    "ray_sampler_tokens": "With --ray: waiting tokens per sampler above which samplers are added.",
    "ray_idle_s": "With --ray: seconds without waiting samples, with a sampler idle, after which "
    "one is removed.",
    "lease_s": "With PostgreSQL: seconds without a sign of life after which a standby takes over.",
    "engine_ping_s": "Seconds between two pings of an engine process.",
    "engine_hang_s": "Seconds without a response after which an engine process is replaced.",
    "poll_hold_s": "Seconds a long poll is held; clients allow 45.",
    "busy_after_s": "Target latency of submissions, in seconds; while all take longer, some are "
    "answered 429.",
    "result_life_s": "Retention of results, in seconds.",
    "max_result_bytes": "Maximum bytes of one tenant's results; above it the oldest are dropped.",
    "sampler_life_s": "Retention of unnamed samplers after their last use, in seconds.",
    "max_depot_cache_bytes": "Maximum bytes of local copies of folders in an object store; above "
    "it those unused for longest are deleted.",
    "max_sampler_bytes": "Maximum bytes of one tenant's unnamed samplers; above it the least "
    "recently used are dropped.",
    "session_silence_s": "Seconds without any request or heartbeat after which a session ends.",
    "sample_silence_s": "Seconds without a heartbeat, poll or new sample after which unfinished "
    "samples of a session are cancelled.",
    "session_life_s": "Retention of an ended session's training state, in seconds; checkpoints "
    "stay.",
    "record_life_s": "Retention of the record of an ended run without checkpoints, in seconds.",
    "min_free_bytes": "Free bytes on the data folder's disk below which new work is refused.",
    "reserve_bytes": "Bytes reserved next to an SQLite database, so that deletes work on a full "
    "disk; 0 for none.",
    "trim_every_s": "Seconds between two retention runs.",
    "max_token_life_s": "Seconds after which tokens renewed from tokens expire; the key itself "
    "starts a new chain.",
    "drain_s": "Seconds that open requests may take when the server stops.",
    "body_silence_s": "Seconds a client may pause while it sends a body.",
    "min_body_bytes_per_s": "Minimum average upload rate of a body after its first "
    "--body-silence-s seconds, in bytes per second.",
    "max_body_bytes_in_memory": "Maximum bytes of all bodies being read at once.",
}
_CONNECTIONS = {
    "max_connections": "Maximum connections; near that number tenants get fair shares.",
    "max_head_bytes": "Maximum size of a request's path and headers, in bytes.",
    "max_headers": "Maximum headers of a request.",
    "head_timeout_s": "Seconds a client may take to send path and headers.",
    "write_timeout_s": "Seconds a client may go without reading its response.",
}
_SCHEDULER = {
    "max_batch_tokens": "Maximum tokens of an engine batch.",
    "max_batch_operations": "Maximum operations of an engine batch.",
    "max_running_samples": "Maximum sampling requests in one engine; a tenant below its share and "
    "short requests may exceed it. 1 runs each alone.",
    "max_adapters": "Maximum adapters in the memory of one engine.",
    "max_samplers": "Maximum samplers in the memory of one engine.",
    "adapter_idle_s": "Seconds without use after which an adapter or sampler is evicted from "
    "memory; it stays on disk and is loaded again when needed.",
    "hole_grace_s": "Seconds to wait for a missing sequence number.",
    "snapshot_after_s": "Maximum engine time that a crash may repeat, over all runs, in seconds.",
    "snapshot_after_operations": "Maximum operations of one run that a crash may repeat.",
}


def settings() -> list[ServerSetting]:
    """Every number that can be set."""
    found = []
    for struct, names in (
        (Limits, _LIMITS),
        (ServerConfig, _SERVER),
        (ConnectionBounds, _CONNECTIONS),
        (SchedulerConfig, _SCHEDULER),
    ):
        defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
        found += [
            ServerSetting(name=name, default=defaults[name], about=about)
            for name, about in names.items()
        ]
    return found


def make_config(
    data_dir: Path, models: tuple[ServedModel, ...], values: Mapping[str, Any]
) -> ServerConfig:
    """The config with these values; what is missing or None keeps its default."""
    given = {name: value for name, value in values.items() if value is not None}
    given = {**given, **_implied_by_ray(given)}

    def only(names: object) -> dict[str, Any]:
        assert isinstance(names, tuple | dict)
        return {name: given[name] for name in names if name in given}

    is_deterministic = bool(given.get("is_deterministic", False))
    return ServerConfig(
        data_dir=data_dir,
        models=models,
        limits=Limits(**only(_LIMITS)),
        connections=ConnectionBounds(**only(_CONNECTIONS)),
        scheduler=SchedulerConfig(**only(_SCHEDULER), is_deterministic=is_deterministic),
        **only(_SERVER),
        **only(_PLAIN),
    )


def _implied_by_ray(given: Mapping[str, Any]) -> dict[str, Any]:
    """With --ray all workers dial in, and there is a slot for each of them."""
    if given.get("ray") is None:
        return {}
    port = given.get("port", 8000)
    _, most = parse_samplers(given.get("samplers", "1"))
    needed = given.get("trainers", 1) + most
    return {
        "workers": given.get("workers", 0),
        "listen_workers": given.get("listen_workers", f"0.0.0.0:{port + 1 if port else 0}"),
        "max_remote_workers": max(given.get("max_remote_workers", 16), needed),
    }


_PLAIN = (
    "ray",
    "samplers",
    "ray_labels",
    "ray_advertise",
    "ray_tls_ca",
    "host",
    "port",
    "database_url",
    "depot",
    "is_standby",
    "listen_workers",
    "workers_tls_cert",
    "workers_tls_key",
    "device",
    "dtype",
    "num_threads",
    "losses",
    "bootstrap_key",
    "signing_secret_file",
    "operator_token_file",
    "worker_token_file",
    "public_url",
    "allowed_hosts",
    "is_deterministic",
    "has_merging",
    "has_kernels",
    "verbosity",
    "log_format",
    "metrics_port",
    "metrics_host",
    "metrics_token_file",
    "otel_endpoint",
)
