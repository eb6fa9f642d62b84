"""Housekeeping beside the requests: heartbeats written, expired checkpoints deleted, samples
without a client cancelled, silent sessions ended, and what is no longer kept trimmed.

Chores are independent: one that fails is logged and tried again, the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable

from tinkex import crashpoints
from tinkex.server.services import Services
from tinkex.server.upkeep import retention
from tinkex.server.upkeep.abandoned_samples import cancel_abandoned
from tinkex.store import checkpoints, clock, keys, sessions
from tinkex.store.clock import steady_now

_logger = logging.getLogger(__name__)

_EVERY_S = 5.0
_SWEEP_EVERY_S = 6 * 3600.0  # a listing of the whole depot
_GAP_S = 60.0  # more than that between two rounds: the machine slept, and clients with it


class Janitor:
    """Does the chores of one server, each in its own rhythm."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._every_s = min(_EVERY_S, services.config.trim_every_s)
        self._trimmed_at = -float("inf")
        self._swept_at = -float("inf")
        self._round_at = steady_now()
        self._patient_until = self._round_at + services.config.patience_s

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.tidy()
            await asyncio.sleep(self._every_s)

    async def tidy(self) -> None:
        """One round."""
        now, before = steady_now(), self._round_at
        self._round_at = now
        if now - before > _GAP_S:
            self._patient_until = now + self._services.config.patience_s
        await self._do(self._services.db.arestore_reserve)
        await self._do(self._look_at_disk)
        await self._do(self._write_heartbeats)
        await self._do(self._write_key_uses)
        await self._do(self._drop_expired)
        if now >= self._patient_until:
            await self._do(lambda: cancel_abandoned(self._services))
        if time.monotonic() - self._trimmed_at >= self._services.config.trim_every_s:
            self._trimmed_at = time.monotonic()
            await self._do(self._keep_time)
            await self._do(self._end_silent_sessions)
            for chore in retention.chores(self._services):
                await self._do(chore)
            await self._do(self._services.db.ashrink)
        if time.monotonic() - self._swept_at >= _SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            await self._do(self._sweep_depot)

    async def last_round(self) -> None:
        """What the next start should know."""
        await self._do(self._write_heartbeats)
        await self._do(self._write_key_uses)
        await self._do(self._keep_time)

    async def _write_heartbeats(self) -> None:
        """Records the last heartbeats of sessions; a failed write is retried later."""
        services = self._services
        beats, services.heartbeats = services.heartbeats, {}
        try:
            if beats:
                await services.db.awrite(sessions.record_heartbeats, beats)
        except Exception:
            services.heartbeats = beats | services.heartbeats
            raise

    async def _write_key_uses(self) -> None:
        """Notes when keys were last used; what cannot be written is kept for later."""
        keyring = self._services.keyring
        uses, keyring.uses = keyring.uses, {}
        try:
            if uses:
                await self._services.db.awrite(keys.record_uses, uses)
        except Exception:
            keyring.uses = uses | keyring.uses
            raise

    async def _do(self, chore: Callable[[], Awaitable[object]]) -> None:
        try:
            await chore()
        except Exception as error:
            _logger.error("Housekeeping failed and will be tried again: %s", error)

    async def _look_at_disk(self) -> None:
        usage = await asyncio.to_thread(shutil.disk_usage, self._services.config.data_dir)
        is_low = usage.free < self._services.config.min_free_bytes
        if is_low and not self._services.is_disk_low:
            _logger.error("Only %d bytes are free on the disk; no new work is taken.", usage.free)
        self._services.is_disk_low = is_low

    async def _sweep_depot(self) -> None:
        await asyncio.to_thread(self._services.scheduler.sweep_depot)

    async def _keep_time(self) -> None:
        await self._services.db.awrite(clock.keep)

    async def _drop_expired(self) -> None:
        folders = self._services.scheduler.folders
        while expired := await self._services.db.awrite_freeing(checkpoints.drop_expired):
            for checkpoint_id in expired:
                crashpoints.passing("checkpoint.expired")
                await asyncio.to_thread(folders.remove, folders.checkpoint(checkpoint_id))

    async def _end_silent_sessions(self) -> None:
        """Ends silent sessions; after a start or a suspend clients get time to come back."""
        services, now = self._services, steady_now()
        if now < self._patient_until:
            return
        before = now - services.config.session_silence_s
        # On a full disk heartbeats are not written, while this write has the reserve.
        alive = frozenset(each for each, at in services.heartbeats.items() if at >= before)
        for session_id in await services.db.awrite_freeing(sessions.finish_silent, before, alive):
            services.forget_session(session_id)
            await asyncio.to_thread(services.scheduler.free_session, session_id)
