"""The wire layer is light, and its limits are those the protocol fixes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tinkex.types import ClientConfig
from tinkex.wire.limits import DEFAULT_LIMITS, Limits

MODULES = "tinkex.types, tinkex.wire.json, tinkex.wire.legacy_json, tinkex.wire.protobuf"
HEAVY = ["numpy", "torch", "aiohttp", "google.protobuf", "pydantic", "tinker", "httpx", "starlette"]


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        f"import sys, {MODULES}, tinkex.wire.paths, tinkex.wire.limits\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_limits_agree_with_those_announced_to_clients() -> None:
    assert DEFAULT_LIMITS.chunk_max_datums == ClientConfig().fwdbwd_max_chunk_len == 1024
    assert DEFAULT_LIMITS.chunk_max_bytes == ClientConfig().fwdbwd_max_chunk_bytes_count
    assert DEFAULT_LIMITS.chunk_max_bytes == 5_000_000
    assert DEFAULT_LIMITS.max_datums_per_request >= DEFAULT_LIMITS.chunk_max_datums
    assert DEFAULT_LIMITS.max_body_bytes > DEFAULT_LIMITS.chunk_max_bytes
    assert (DEFAULT_LIMITS.min_ttl_s, DEFAULT_LIMITS.max_ttl_s) == (3600, 315_360_000)


def test_limits_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Limits().max_rank = 1  # type: ignore[misc]
