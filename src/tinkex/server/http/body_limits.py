"""How large the body of a request may be, by its route. Checked before any of it is read."""

from __future__ import annotations

from tinkex.server.http.openai_paths import SAMPLING_PATHS
from tinkex.wire.limits import Limits

__all__ = ["body_limit"]

_API = "/api/v1/"
_TRAINING = frozenset({"forward_backward", "forward"})
_WITH_METADATA = frozenset(
    {
        "create_session",
        "sessions/search",
        "create_model",
        "save_weights",
        "save_weights_for_sampler",
        "load_weights",
    }
)
_ESCAPED = 4  # JSON may write a character as up to three times its bytes, and has room between

_FIXED = {
    # Ids of results that were fetched since the last poll: about 40 bytes for each of 20,000.
    "retrieve_futures": 1 << 20,
    # Read and thrown away: 100 events with tracebacks. Clients repeat what is refused, for ever.
    "telemetry": 4 << 20,
}


def body_limit(path: str, limits: Limits, *, is_json: bool = False) -> int:
    """Bytes of the body of a request to this path, before and after decompression.

    `is_json` matters where training data may come as JSON, whose values take several times its
    size in memory. A path that is not known takes what a control request may.
    """
    name = path.removeprefix(_API)
    if name in _TRAINING:
        limit = limits.max_json_bytes if is_json else limits.max_body_bytes
    elif name == "asample" or path in SAMPLING_PATHS:
        limit = limits.max_json_bytes
    elif name in _WITH_METADATA:
        limit = limits.max_control_bytes + _ESCAPED * limits.max_metadata_bytes
    else:
        limit = _FIXED.get(name, limits.max_control_bytes)
    return min(limit, limits.max_body_bytes)
