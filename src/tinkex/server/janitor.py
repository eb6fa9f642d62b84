"""Housekeeping beside the requests: heartbeats written, expired things dropped, links to dead
sessions cut."""

from __future__ import annotations

import asyncio
import logging
import time

from tinkex import crashpoints
from tinkex.server.services import Services
from tinkex.store import checkpoints, clock, results, sessions
from tinkex.store.clock import steady_now

_logger = logging.getLogger(__name__)

_EVERY_S = 5.0
_PRUNE_EVERY = 120  # rounds
_PATIENCE_S = 300.0  # after a start clients need time to be heard of again


async def keep_house(parts: Services) -> None:
    """Runs until cancelled."""
    rounds = 0
    while True:
        try:
            await tidy(parts, prune=rounds % _PRUNE_EVERY == 0)
        except Exception:
            _logger.exception("Housekeeping failed; it tries again.")
        rounds += 1
        await asyncio.sleep(_EVERY_S)


async def tidy(parts: Services, *, prune: bool = True) -> None:
    """One round of housekeeping."""
    beats, parts.heartbeats = parts.heartbeats, {}
    if beats:
        await parts.db.awrite(sessions.record_heartbeats, beats)
    folders = parts.scheduler.folders
    for checkpoint_id in await parts.db.awrite(checkpoints.drop_expired):
        crashpoints.passing("checkpoint.expired")
        await asyncio.to_thread(folders.remove, folders.checkpoint(checkpoint_id))
    if prune:
        now = steady_now()
        await parts.db.awrite(clock.keep)
        await parts.db.awrite(results.prune, now - parts.config.result_life_s)
        if time.monotonic() - parts.started_at > _PATIENCE_S:
            await _end_silent_sessions(parts, now - parts.config.session_silence_s)


async def _end_silent_sessions(parts: Services, before: float) -> None:
    for session_id in await parts.db.awrite(sessions.finish_silent, before):
        parts.forget_session(session_id)
        await asyncio.to_thread(parts.scheduler.free_session, session_id)
