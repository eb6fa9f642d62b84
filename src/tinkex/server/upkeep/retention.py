"""Trimming: what is kept for a while is dropped when the while is over.

Results go after `result_life_s`, or earlier if a tenant's take more than `max_result_bytes`; the
log and the sampling requests behind them follow. Samplers that were never given a name go when they
are not used, or when a tenant has too many. Sessions that ended lose what they held. Everything
goes in slices, between which others write, and on a full disk with the help of its reserve.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from sqlalchemy import Connection

from tinkex.server.services import Services
from tinkex.store import (
    deletions,
    quotas,
    result_retention,
    samplers,
    session_retention,
    usage_sums,
)
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord

__all__ = ["Chore", "chores"]

Chore = Callable[[], Awaitable[object]]

_DELETIONS_LIFE_S = 3600.0  # clients end their retries long before


def chores(services: Services) -> list[Chore]:
    """One round: what fails leaves the others to be done."""
    config, now = services.config, steady_now()
    old = now - config.result_life_s
    return [
        lambda: _trim_results(services, old),
        lambda: _trim_log(services, old),
        lambda: _repeat(services, result_retention.trim_samples, old),
        lambda: _trim_samplers(services, now - config.sampler_life_s),
        lambda: _repeat(services, result_retention.drop_freed_samplers, old),
        lambda: _trim_sessions(services, now - config.session_life_s),
        lambda: _repeat(services, session_retention.drop_records, now - config.record_life_s),
        lambda: services.db.awrite_freeing(deletions.forget, now - _DELETIONS_LIFE_S),
        lambda: _count_bytes(services),
        lambda: _drop_usage(services),
    ]


async def _count_bytes(services: Services) -> None:
    kept = await services.db.aread(quotas.bytes_by_owner)
    changed = await services.db.aread(usage_sums.bytes_changed, kept)
    if changed:
        await services.db.awrite_freeing(usage_sums.record_bytes, changed)


async def _drop_usage(services: Services) -> None:
    before = usage_sums.today() - usage_sums.KEPT_DAYS
    while await services.db.awrite_freeing(usage_sums.drop_days, before):
        pass


async def _trim_results(services: Services, before: float) -> None:
    most = services.config.max_result_bytes
    limits = await services.db.aread(result_retention.results_to_drop, before, most)
    for owner, up_to in limits.items():
        while await services.db.awrite_freeing(result_retention.drop_results, owner, up_to):
            pass


async def _repeat(
    services: Services, take: Callable[[Connection, float], int], before: float
) -> None:
    """Takes slices until there is nothing left to take."""
    while await services.db.awrite_freeing(take, before):
        pass


async def _trim_log(services: Services, before: float) -> None:
    after: int | None = 0
    while after is not None:
        found, after = await services.db.aread(result_retention.models_to_trim, before, after)
        for model_id in found:
            while await services.db.awrite_freeing(
                result_retention.trim_operations, model_id, before
            ):
                pass


async def _trim_samplers(services: Services, unused_since: float) -> None:
    await _write_uses(services)
    kept = await services.db.aread(samplers.ephemeral)  # the one used last comes first
    totals: Counter[str] = Counter()
    dropped = []
    for sampler in kept:
        is_first = sampler.owner not in totals
        totals[sampler.owner] += sampler.size_bytes or 0
        is_above = totals[sampler.owner] > services.config.max_sampler_bytes and not is_first
        if is_above or (sampler.used_at or sampler.created_at) < unused_since:
            dropped.append(sampler)
    await _drop_samplers(services, dropped)


async def _write_uses(services: Services) -> None:
    uses, services.sampler_uses = services.sampler_uses, {}
    try:
        if uses:
            await services.db.awrite_freeing(samplers.record_uses, uses)
    except Exception:
        services.sampler_uses = uses | services.sampler_uses
        raise


async def _drop_samplers(services: Services, dropped: list[SamplerRecord]) -> None:
    idle = [
        each for each in dropped if not services.scheduler.uses_sampler(each.sampling_session_id)
    ]
    if not idle:
        return
    await services.db.awrite_freeing(samplers.free, [each.sampling_session_id for each in idle])
    for sampler in idle:
        services.samplers.pop(sampler.sampling_session_id, None)
    await asyncio.to_thread(services.scheduler.forget_samplers, idle)


async def _trim_sessions(services: Services, before: float) -> None:
    for session_id in await services.db.aread(session_retention.sessions_to_trim, before):
        left = await services.db.awrite_freeing(session_retention.trim_session, session_id, before)
        if left is None:
            continue
        services.forget_session(session_id)
        for sampling_session_id in left.sampling_session_ids:
            services.samplers.pop(sampling_session_id, None)
        await asyncio.to_thread(services.scheduler.forget_session, left)
