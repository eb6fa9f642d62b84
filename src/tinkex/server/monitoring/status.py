"""The server's status: engine, queue, speed, memory and disk.

A tenant gets its own numbers and the totals of all tenants; only the operator sees the others.
Totals are computed at most twice a second and cached in between.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from typing import Any

import msgspec

from tinkex.scheduler.queue_counts import QueueCounts, TenantCounts
from tinkex.scheduler.workers import WorkerInfo
from tinkex.server.monitoring.process_memory import engine_bytes, resident_bytes
from tinkex.server.services import Services
from tinkex.store import quotas
from tinkex.version import __version__

__all__ = ["Overview", "StatusBoard"]

_FRESH_S = 0.5


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the status that is the same for all tenants."""

    counts: QueueCounts
    workers: list[WorkerInfo]
    tokens_per_s: dict[str, int]
    memory: dict[str, int | None]
    disk: dict[str, int]


class StatusBoard:
    """The status of one server. Used on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._overview: Overview | None = None
        self._as_of = 0.0
        self._lock = asyncio.Lock()

    async def of_tenant(self, owner: str) -> dict[str, Any]:
        """The status as a tenant may see it."""
        overview = await self.overview()
        mine = overview.counts.tenants.get(owner, TenantCounts())
        services = self._services
        used = await services.db.aread(quotas.disk_use, owner)
        quota_bytes = await services.db.aread(services.scheduler.disk_quota.limit)
        status = self._common(overview)
        status["queue"]["yours"] = msgspec.to_builtins(mine)
        status["disk"].update(used_by_you_bytes=used.total, quota_bytes=quota_bytes)
        return status

    async def of_operator(self) -> dict[str, Any]:
        """The status with every tenant and every field of each worker."""
        overview = await self.overview()
        status = self._common(overview)
        status["queue"]["tenants"] = [
            {
                "owner": owner,
                "training": each.operations,
                "sampling": each.requests,
                "running": each.running_requests,
            }
            for owner, each in sorted(overview.counts.tenants.items())
        ]
        status["workers"] = [
            {**msgspec.to_builtins(each), **_shown(each)} for each in overview.workers
        ]
        return status

    async def overview(self) -> Overview:
        """Totals of all tenants, at most half a second old."""
        async with self._lock:
            if self._overview is None or time.monotonic() - self._as_of > _FRESH_S:
                self._overview = await asyncio.to_thread(self._look)
                self._as_of = time.monotonic()
            return self._overview

    def _look(self) -> Overview:
        services = self._services
        scheduler, disk = services.scheduler, shutil.disk_usage(services.config.data_dir)
        rates = scheduler.counters.tokens_per_s()
        return Overview(
            counts=scheduler.queue_counts(),
            workers=scheduler.workers.list(),
            tokens_per_s={use: rates[use] for use in ("trained", "sampled", "scored")},
            memory={
                "server_bytes": resident_bytes(),
                "engine_bytes": engine_bytes(),
                "machine_bytes": _machine_bytes(),
            },
            disk={"free_bytes": disk.free, "total_bytes": disk.total},
        )

    def _common(self, overview: Overview) -> dict[str, Any]:
        services, counts = self._services, overview.counts
        catalog = services.catalog
        return {
            "version": __version__,
            "uptime_s": round(time.monotonic() - services.started_at, 1),
            "state": self._state(),
            "models": [each.name for each in services.config.models]
            if catalog is None
            else catalog.names(),
            "engine": _engine(overview.workers),
            "workers": [_shown(each) for each in overview.workers],
            "queue": {
                "training": {
                    "operations": sum(counts.operations.values()),
                    "models": counts.models,
                    "tokens": counts.operation_tokens,
                    "running_operations": counts.running_operations,
                    "oldest_s": round(counts.oldest_operation_s, 1),
                },
                "sampling": {
                    "requests": counts.requests,
                    "tokens": counts.request_tokens,
                    "running_requests": counts.running_requests,
                    "running_sequences": counts.running_sequences,
                    "oldest_s": round(counts.oldest_request_s, 1),
                },
            },
            "tokens_per_s": dict(overview.tokens_per_s),
            "memory": dict(overview.memory),
            "disk": dict(overview.disk),
        }

    def _state(self) -> str:
        services = self._services
        if services.is_draining:
            return "stopping"
        if services.is_disk_low:
            return "disk_low"
        return services.scheduler.engine_state().state


def _engine(workers: list[WorkerInfo]) -> dict[str, Any]:
    """All engines together: their mean busy share, and what most of the busy ones do."""
    doing = [each.doing for each in workers if each.doing != "idle"]
    return {
        "busy_share": round(sum(each.busy for each in workers) / max(1, len(workers)), 3),
        "doing": max(doing, key=doing.count) if doing else "idle",
        "num_workers": len(workers),
        "num_adapters": sum(each.num_adapters for each in workers),
        "num_samplers": sum(each.num_samplers for each in workers),
    }


def _shown(worker: WorkerInfo) -> dict[str, Any]:
    """The fields of a worker that tenants may see: neither its host nor its process."""
    return {
        "name": worker.name,
        "state": "draining" if worker.is_draining else worker.state,
        "roles": list(worker.roles),
        "doing": worker.doing,
        "busy_share": round(worker.busy, 3),
        "num_models": worker.num_models,
        "num_adapters": worker.num_adapters,
        "num_samples": worker.num_samples,
    }


def _machine_bytes() -> int | None:
    """The memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
