"""What the routes work with: one of each per server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request

from tinkex.scheduler.scheduler import Scheduler
from tinkex.server.config import ServerConfig
from tinkex.server.errors import DiskLow, Gone, NotFound, NotReady
from tinkex.server.gate.admission import Admission, ReleasedSlot
from tinkex.server.gate.auth import Keyring
from tinkex.server.gate.signing import Signer
from tinkex.server.live_feed import LiveFeed
from tinkex.server.models.catalog import Catalog
from tinkex.server.result_waiters import Waiters
from tinkex.store import Database, models, sessions
from tinkex.store.clock import steady_now
from tinkex.store.keys import Key
from tinkex.store.samplers import SamplerRecord
from tinkex.store.sessions import Session

_READY_WAIT_S = 30.0
_SESSIONS_KEPT = 4096


class RequestTracing(Protocol):
    """Notes which submission an accepted request came with."""

    def submitted(self, request_id: str, kind: str) -> None: ...


@dataclass(slots=True)
class Services:
    """The services of a running server."""

    config: ServerConfig
    db: Database
    scheduler: Scheduler
    waiters: Waiters
    live: LiveFeed
    keyring: Keyring
    signer: Signer
    admission: Admission
    catalog: Catalog | None = None
    heartbeats: dict[str, float] = field(default_factory=dict)  # not yet written
    sampler_uses: dict[str, float] = field(default_factory=dict)  # not yet written
    last_seen: dict[str, float] = field(
        default_factory=dict
    )  # last request or heartbeat, by sampling session
    seen_since: float = field(default_factory=steady_now)
    is_draining: bool = False
    tracing: RequestTracing | None = None
    is_disk_low: bool = False
    started_at: float = field(default_factory=time.monotonic)
    samplers: dict[str, SamplerRecord] = field(default_factory=dict)  # a few, as they never change
    merging: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Taken for each piece of a merged model, so that merging takes one core at most."""
    _sessions: dict[str, Session] = field(default_factory=dict)
    _optimizers: dict[tuple[str, str], str] = field(default_factory=dict)  # they never change

    async def models(self) -> Catalog:
        """The base models; waits for the engine if it is still loading.

        Raises:
            NotReady: it takes too long.
        """
        deadline = time.monotonic() + _READY_WAIT_S
        while self.catalog is None:
            if self.scheduler.is_ready():
                self.catalog = Catalog(self.config.models, self.scheduler.models())
            elif self.is_draining or time.monotonic() > deadline:
                raise NotReady(f"The server is starting; {self.starting()}.")
            else:
                async with ReleasedSlot():
                    await asyncio.sleep(0.05)
        return self.catalog

    def starting(self) -> str:
        """What a server that is not ready waits for."""
        has_any = self.config.workers > 0 or self.scheduler.engine_states()
        return "its engine is loading the models" if has_any else "no worker has joined yet"

    async def session(self, owner: str, session_id: str, *, must_be_open: bool = True) -> Session:
        """The owner's session.

        Raises:
            NotFound: there is none.
            Gone: it has ended.
        """
        found = self._sessions.get(session_id)
        if found is None or found.owner != owner:  # same path and timing as an unknown id
            found = await self.db.aread(sessions.get, owner, session_id)
            if found is not None:
                if len(self._sessions) >= _SESSIONS_KEPT:
                    self._sessions.clear()
                self._sessions[session_id] = found
        if found is None:
            raise NotFound(f"There is no session {session_id[:100]!r}.", code="unknown-session")
        if must_be_open and found.finished_at is not None:
            raise Gone(f"The session {session_id} has ended.", code="session-ended")
        return found

    async def optimizer(self, owner: str, model_id: str) -> str | None:
        """The name of the optimizer the owner's model was created with; None if there is none."""
        found = self._optimizers.get((owner, model_id))
        if found is None:
            model = await self.db.aread(models.get, owner, model_id)
            if model is None:
                return None
            if len(self._optimizers) >= _SESSIONS_KEPT:
                self._optimizers.clear()
            found = self._optimizers[owner, model_id] = str(model.optimizer_config["type"])
        return found

    def check_disk(self) -> None:
        """Refuses new work while the disk is all but full: what is accepted needs the rest.

        Raises:
            DiskLow: it is.
        """
        if self.is_disk_low:
            raise DiskLow("The disk of the server is all but full, so it takes no new work.")

    def remember_sampler(self, sampler: SamplerRecord) -> None:
        """Spares the next sampling request a look into the store."""
        if len(self.samplers) >= _SESSIONS_KEPT:
            self.samplers.clear()
        self.samplers[sampler.sampling_session_id] = sampler

    def forget_session(self, session_id: str) -> None:
        """Has the session read anew at its next use."""
        self._sessions.pop(session_id, None)


def services_of(request: Request) -> Services:
    """The services of the server that got this request."""
    found: Services = request.scope["app"].state.services
    return found


def caller(request: Request) -> Key:
    """The key of the request."""
    key: Key = request.scope["state"]["key"]
    return key


def owner(request: Request) -> str:
    """Whose rows the request may see."""
    return caller(request).owner
