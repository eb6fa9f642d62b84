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
from tinkex.store import deletions, result_retention, samplers, session_retention
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord

__all__ = ["Chore", "chores"]

Chore = Callable[[], Awaitable[object]]

_DELETIONS_LIFE_S = 3600.0  # clients give up asking again long before


def chores(parts: Services) -> list[Chore]:
    """One round: what fails leaves the others to be done."""
    config, now = parts.config, steady_now()
    old = now - config.result_life_s
    return [
        lambda: _trim_results(parts, old),
        lambda: _trim_log(parts, old),
        lambda: _repeat(parts, result_retention.trim_samples, old),
        lambda: _trim_samplers(parts, now - config.sampler_life_s),
        lambda: _repeat(parts, result_retention.drop_freed_samplers, old),
        lambda: _trim_sessions(parts, now - config.session_life_s),
        lambda: _repeat(parts, session_retention.drop_records, now - config.record_life_s),
        lambda: parts.db.awrite_freeing(deletions.forget, now - _DELETIONS_LIFE_S),
    ]


async def _trim_results(parts: Services, before: float) -> None:
    most = parts.config.max_result_bytes
    limits = await parts.db.aread(result_retention.results_to_drop, before, most)
    for owner, up_to in limits.items():
        while await parts.db.awrite_freeing(result_retention.drop_results, owner, up_to):
            pass


async def _repeat(parts: Services, take: Callable[[Connection, float], int], before: float) -> None:
    """Takes slices until there is nothing left to take."""
    while await parts.db.awrite_freeing(take, before):
        pass


async def _trim_log(parts: Services, before: float) -> None:
    after: int | None = 0
    while after is not None:
        found, after = await parts.db.aread(result_retention.models_to_trim, before, after)
        for model_id in found:
            while await parts.db.awrite_freeing(result_retention.trim_operations, model_id, before):
                pass


async def _trim_samplers(parts: Services, unused_since: float) -> None:
    await _write_uses(parts)
    kept = await parts.db.aread(samplers.ephemeral)  # the one used last comes first
    totals: Counter[str] = Counter()
    dropped = []
    for sampler in kept:
        is_first = sampler.owner not in totals
        totals[sampler.owner] += sampler.size_bytes or 0
        is_above = totals[sampler.owner] > parts.config.max_sampler_bytes and not is_first
        if is_above or (sampler.used_at or sampler.created_at) < unused_since:
            dropped.append(sampler)
    await _drop_samplers(parts, dropped)


async def _write_uses(parts: Services) -> None:
    uses, parts.sampler_uses = parts.sampler_uses, {}
    try:
        if uses:
            await parts.db.awrite_freeing(samplers.record_uses, uses)
    except Exception:
        parts.sampler_uses = uses | parts.sampler_uses
        raise


async def _drop_samplers(parts: Services, dropped: list[SamplerRecord]) -> None:
    idle = [each for each in dropped if not parts.scheduler.uses_sampler(each.sampling_session_id)]
    if not idle:
        return
    await parts.db.awrite_freeing(samplers.free, [each.sampling_session_id for each in idle])
    for sampler in idle:
        parts.samplers.pop(sampler.sampling_session_id, None)
    await asyncio.to_thread(parts.scheduler.forget_samplers, idle)


async def _trim_sessions(parts: Services, before: float) -> None:
    for session_id in await parts.db.aread(session_retention.sessions_to_trim, before):
        left = await parts.db.awrite_freeing(session_retention.trim_session, session_id, before)
        if left is None:
            continue
        parts.forget_session(session_id)
        for sampling_session_id in left.sampling_session_ids:
            parts.samplers.pop(sampling_session_id, None)
        await asyncio.to_thread(parts.scheduler.forget_session, left)
