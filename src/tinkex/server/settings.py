"""What can be set about a server from outside: one list, from which flags and variables follow.

A setting `max_rank` is the flag `--max-rank` and the variable `TINKEX_MAX_RANK`. Reads nothing
itself; whoever has the values makes a `ServerConfig` of them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tinkex.engine.options import DTYPES
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ConnectionBounds, ServedModel, ServerConfig
from tinkex.wire.limits import Limits

__all__ = ["DTYPES", "Setting", "make_config", "settings"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
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
    "max_body_bytes": "Bytes of a request body.",
    "max_json_bytes": "Bytes of a JSON body.",
    "max_control_bytes": "Bytes of the body of a request without training data or prompt.",
    "max_rank": "Rank of a LoRA adapter.",
    "max_tokens_per_request": "Tokens of all sequences of a request.",
    "max_tokens_per_sequence": "Tokens of one sequence.",
    "max_datums_per_request": "Examples in one request.",
    "max_num_samples": "Continuations of one sampling request.",
    "max_stop_sequences": "Stop strings or tokens of one sampling request.",
    "max_top_k": "Width of top-k logprobs.",
    "max_result_values": "Numbers one sampling result may hold.",
    "max_dense_values": "Values of a request's sparse tensors once they are dense.",
    "max_metadata_bytes": "Bytes of user metadata.",
    "min_ttl_s": "Shortest life of a checkpoint with an end, in seconds.",
    "max_ttl_s": "Longest life of a checkpoint with an end, in seconds.",
    "max_sessions_per_owner": "Open sessions of one tenant.",
    "max_models_per_owner": "Models in one tenant's open sessions.",
    "max_disk_bytes_per_owner": "Bytes of one tenant's files on disk; 0 for 80 % of the space, "
    "free or taken by tenants' files.",
    "max_requests_per_s": "Requests of one tenant per second, on average; 0 for no limit.",
    "max_burst_requests": "Requests of one tenant that may come at once after a pause.",
    "max_open_requests": "Requests of one tenant being answered at once, held polls included.",
    "max_open_body_bytes": "Bytes of one tenant's bodies being read at once.",
}
_SERVER = {
    "max_pending_samples": "Sampling requests waiting on the server before it answers 429.",
    "max_pending_samples_per_owner": "The same for one tenant.",
    "max_pending_operations_per_owner": "Training operations of one tenant waiting.",
    "engine_ping_s": "Seconds between two pings of the engine's process.",
    "engine_hang_s": "Seconds without an answer after which the engine's process is replaced.",
    "poll_hold_s": "Seconds a poll is held; clients allow 45.",
    "busy_after_s": "Seconds a submission may take; when all take longer, some are answered 429.",
    "result_life_s": "Seconds a result is kept.",
    "max_result_bytes": "Bytes of results kept for one tenant; above that the oldest go early.",
    "sampler_life_s": "Seconds a sampler saved without a name is kept after its last use.",
    "max_sampler_bytes": "Bytes of samplers without a name of one tenant; the least used go.",
    "session_silence_s": "Seconds without a sign of life after which a session counts as ended.",
    "sample_silence_s": "Seconds without a heartbeat, poll or new sample after which unfinished "
    "samples of a session are cancelled.",
    "session_life_s": "Seconds the training state of an ended session is kept; checkpoints stay.",
    "record_life_s": "Seconds the record of an ended run without checkpoints is kept.",
    "min_free_bytes": "Bytes free on the data folder's disk below which no new work is taken.",
    "reserve_bytes": "Bytes kept aside beside an SQLite database, so that deletes work on a full "
    "disk; 0 for none.",
    "trim_every_s": "Seconds between two rounds of dropping what is no longer kept.",
    "max_token_life_s": "Seconds after which tokens exchanged for tokens end; a key begins anew.",
    "drain_s": "Seconds open requests may take at the end.",
    "body_silence_s": "Seconds a client may pause inside a body.",
    "min_body_bytes_per_s": "Bytes per second a body must come with on average after that.",
    "max_body_bytes_in_memory": "Bytes of all bodies being read at once.",
}
_CONNECTIONS = {
    "max_connections": "Connections kept; near that number the owners of keys get fair shares.",
    "max_head_bytes": "Bytes of a request's path and headers.",
    "max_headers": "Headers of a request.",
    "head_timeout_s": "Seconds a client may take for the head of a request.",
    "write_timeout_s": "Seconds a client may take without reading its answer.",
}
_SCHEDULER = {
    "max_batch_tokens": "Tokens of an engine batch.",
    "max_batch_operations": "Operations of an engine batch.",
    "max_running_samples": "Sampling requests in the engine at once; a tenant below its share and "
    "short requests get places beyond it. 1 runs each alone.",
    "max_adapters": "Adapters kept in memory.",
    "max_samplers": "Samplers kept in memory.",
    "adapter_idle_s": "Seconds after which an adapter or sampler nobody uses leaves memory; it "
    "stays on disk and comes back when it is needed.",
    "hole_grace_s": "Seconds a missing sequence number is waited for.",
    "snapshot_after_s": "Seconds of engine time a crash may have to repeat, of all runs.",
    "snapshot_after_operations": "Operations of one run that a crash may have to repeat.",
}


def settings() -> list[Setting]:
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
            Setting(name=name, default=defaults[name], about=about) for name, about in names.items()
        ]
    return found


def make_config(
    data_dir: Path, models: tuple[ServedModel, ...], values: Mapping[str, Any]
) -> ServerConfig:
    """The config with these values; what is missing or None keeps its default."""
    given = {name: value for name, value in values.items() if value is not None}

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


_PLAIN = (
    "host",
    "port",
    "database_url",
    "device",
    "dtype",
    "num_threads",
    "bootstrap_key",
    "signing_secret_file",
    "public_url",
    "is_deterministic",
    "has_kernels",
    "verbosity",
)
