"""Settings of the scheduler. Plain data, and quick to import."""

from __future__ import annotations

import msgspec

__all__ = ["SchedulerConfig"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How work is divided between tenants, models and engines."""

    max_batch_tokens: int = 16_384
    max_batch_operations: int = 64
    max_running_samples: int = 256
    max_samplers: int = 64
    max_adapters: int = 64
    adapter_idle_s: float = 60.0
    hole_grace_s: float = 120.0
    snapshot_after_s: float = 30.0
    snapshot_after_operations: int = 500
    max_disk_bytes_per_owner: int = 0  # the server sets it to its limit; 0 for a share of the disk
    is_deterministic: bool = False  # each request alone: numbers do not depend on other requests
