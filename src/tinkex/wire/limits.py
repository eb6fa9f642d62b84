"""Limits of the size of one request, and of what one tenant may hold.

One struct, so that an operator can change a limit in one place and an error can name it. The
protocol sets only the bounds of a TTL and the sizes at which clients cut batches into chunks; the
other defaults are ours. Knows nothing of models: the engine checks what fits a context. How
many connections a server keeps and how long it waits for a slow one is in its `ServerConfig`.
"""

from __future__ import annotations

import msgspec

_YEAR_S = 365 * 24 * 3600


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a server. Each field says what is counted and in what unit."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Maximum size of a request body in bytes, after decompression."""

    max_json_bytes: int = 32 * 1024 * 1024
    """Size of a JSON body; its values take several times that in memory."""

    max_control_bytes: int = 256 * 1024
    """Size of the body of a control request, which holds no training data and no prompt; a request
    that may hold metadata has room for that as well."""

    max_json_keys: int = 100_000
    """Keys of all objects in a JSON body together; reading one costs as much as fifty bytes."""

    max_protobuf_fields: int = 200_000
    """Fields of all messages in a protobuf body together; reading one costs as much as hundreds of
    bytes of a tensor."""

    max_decompression_ratio: int = 1000
    """Decompressed size of a body divided by its compressed size."""

    max_json_depth: int = 32
    """Arrays and objects inside one another in a JSON body."""

    max_rank: int = 128
    """Rank of a LoRA adapter."""

    max_tokens_per_request: int = 1_048_576
    """Tokens of all sequences of one request together."""

    max_tokens_per_sequence: int = 131_072
    """Tokens of one sequence: a datum, or a prompt with what may follow it."""

    max_datums_per_request: int = 1024
    """Training examples in one request; clients cut their batches at this number."""

    max_chunks_per_input: int = 4096
    """Chunks (runs of tokens, images, audio) of one model input."""

    max_tensor_values: int = 1 << 26
    """Values of a tensor once it is dense; a sparse one may be small on the wire and huge here."""

    max_dense_values: int = 1 << 25
    """Values of all sparse tensors of one request together, once they are dense."""

    max_num_samples: int = 1024
    """Samples per sampling request."""

    max_stop_sequences: int = 64
    """Stop strings or stop tokens of one sampling request."""

    max_stop_chars: int = 4096
    """Length of one stop string."""

    max_result_values: int = 1 << 24
    """Numbers one sampling result may hold: sampled tokens, and top-k entries beside them."""

    max_top_k: int = 128
    """Width of top-k logprobs and of alternative tokens at each position."""

    max_numbers_ahead: int = 10_000
    """How far a model's request may be numbered ahead of the next one to run."""

    max_name_chars: int = 128
    """Length of a checkpoint's name."""

    max_text_chars: int = 1024
    """Length of a text about a session: its name, project, one tag; also of a base model's name."""

    max_list_items: int = 256
    """Entries of a list in a control message: a session's tags, the terms of a search."""

    max_metadata_bytes: int = 16 * 1024
    """Size of user metadata, as JSON."""

    max_age_recipients: int = 10
    """Keys an external checkpoint may be encrypted for."""

    min_ttl_s: int = 3600
    """Shortest time a checkpoint may be kept for."""

    max_ttl_s: int = 10 * _YEAR_S
    """Longest time a checkpoint may be kept for, unless for ever."""

    max_sessions_per_owner: int = 10_000
    """Open sessions of one tenant."""

    max_models_per_owner: int = 10_000
    """Models in the open sessions of one tenant."""

    max_custom_losses_per_owner: int = 1000
    """Uploaded losses in the open sessions of one tenant."""

    max_custom_loss_bytes_per_owner: int = 64 * 1024 * 1024
    """Bytes of all uploaded losses that are kept for one tenant."""

    max_disk_bytes_per_owner: int = 0
    """Bytes of one tenant on disk: checkpoints, samplers, and what its models recover from; 0 for
    80 % of the space on the data folder's disk, free or taken by tenants' files."""

    max_requests_per_s: int = 2000
    """Requests of one tenant per second, on average; 0 for no limit."""

    max_burst_requests: int = 20_000
    """Requests of one tenant that may come at once after a pause."""

    max_open_requests: int = 4096
    """Requests of one tenant being answered at the same time, held polls among them."""

    max_open_body_bytes: int = 512 * 1024 * 1024
    """Bytes of the bodies of one tenant being read at the same time."""

    chunk_max_datums: int = 1024
    """Datums after which a client starts another chunk."""

    chunk_max_bytes: int = 5_000_000
    """Estimated bytes (`Datum.size_bytes`) above which a client starts another chunk."""


DEFAULT_LIMITS = Limits()
