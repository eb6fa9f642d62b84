"""Samples without a client: cancelled, so that the engine works for those who wait.

A client that is killed, or the official one after Ctrl-C, cancels nothing: its heartbeats stop.
Signs of life are heartbeats of the session, and polls and new requests of the sampling session. A
request that is merely not polled goes on as long as its session has heartbeats. Training is never
cancelled: every operation is part of its run's log.
"""

from __future__ import annotations

import asyncio
import logging

from tinkex.server.services import Services
from tinkex.store import samplers
from tinkex.store.clock import steady_now
from tinkex.store.samplers import Life

__all__ = ["cancel_abandoned"]

_logger = logging.getLogger(__name__)

_BETWEEN_POLLS_S = 15.0  # a client may take that long from the end of one poll to the next


async def cancel_abandoned(services: Services) -> None:
    """One round: cancels samples of sessions that ended or fell silent."""
    silence_s = services.config.sample_silence_s
    poll_s = services.config.poll_hold_s + _BETWEEN_POLLS_S
    in_use = await asyncio.to_thread(services.scheduler.sampling_sessions_in_use)
    lives = await services.db.aread(samplers.lives, list(in_use)) if in_use else []
    now = steady_now()
    silent, ended = set(), set()
    for life in lives:
        if life.finished_at is not None:
            if _heard(services, life) < now - poll_s:
                ended.add(life.sampling_session_id)
        elif max(_heartbeat_at(services, life), _heard(services, life)) < now - silence_s:
            silent.add(life.sampling_session_id)
    reason = "The request was cancelled because its session has ended."
    await _cancel(services, ended, now - poll_s, reason)
    reason = (
        "The request was cancelled because its client seems to be gone: no heartbeat, poll or new "
        f"sample came for {silence_s:g} s."
    )
    await _cancel(services, silent, now - silence_s, reason)
    _forget_old(services, now - max(silence_s, poll_s))


def _heartbeat_at(services: Services, life: Life) -> float:
    """The last heartbeat, one that could not be written yet included."""
    return max(life.heartbeat_at, services.heartbeats.get(life.session_id, 0.0))


def _heard(services: Services, life: Life) -> float:
    return services.last_seen.get(life.sampling_session_id, services.seen_since)


async def _cancel(
    services: Services, sampling_sessions: set[str], before: float, reason: str
) -> None:
    if not sampling_sessions:
        return
    scheduler = services.scheduler
    count = await asyncio.to_thread(
        scheduler.sample_cancelling.cancel_sessions, sampling_sessions, before, reason
    )
    if count:
        _logger.warning("%d samples: %s", count, reason)


def _forget_old(services: Services, before: float) -> None:
    """Signs so old that they say the same as none."""
    for sampling_session_id, at in list(services.last_seen.items()):
        if at < before:
            del services.last_seen[sampling_session_id]
