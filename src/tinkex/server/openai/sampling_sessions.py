"""Internal sampling sessions: one per tenant and model, made when first needed.

They belong to a session that the server opens for the tenant and that expires like any other when
it is unused; the next request then opens a new one. Requests send its heartbeats while they wait,
so that their samples are not cancelled as abandoned.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import msgspec

from tinkex.server.errors import Gone, NotFound
from tinkex.server.openai.served_models import ServedName
from tinkex.server.services import Services
from tinkex.store import endpoint_sessions
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord
from tinkex.types.requests import CLONE_STRIDE

__all__ = ["EndpointSampler", "EndpointSamplers"]

_KEPT = 4096


class EndpointSampler(msgspec.Struct, frozen=True, kw_only=True):
    """A sampling session, and the sequence numbers of this server's requests in it."""

    record: SamplerRecord
    seq_ids: Iterator[int]


class EndpointSamplers:
    """The sampling sessions of all tenants that use the endpoint."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._session_ids: dict[str, str] = {}
        self._samplers: dict[str, EndpointSampler] = {}

    async def get(self, owner: str, served: ServedName) -> EndpointSampler:
        """The one for this tenant and model."""
        session_id = await self._session(owner)
        self.beat(session_id)
        sampling_session_id = f"{session_id}:openai:{_digest(served)}"
        known = self._samplers.get(sampling_session_id)
        if known is None:
            record = _record(owner, session_id, sampling_session_id, served)
            known = self._remember(
                *await self._services.db.awrite(endpoint_sessions.add_sampler, record)
            )
        return known

    def beat(self, session_id: str) -> None:
        """Records a heartbeat of the session."""
        self._services.heartbeats[session_id] = steady_now()

    async def _session(self, owner: str) -> str:
        known = self._session_ids.get(owner)
        if known is not None:
            try:
                return (await self._services.session(owner, known)).session_id
            except (Gone, NotFound):
                del self._session_ids[owner]
        made: str = await self._services.db.awrite(endpoint_sessions.open_session, owner)
        if len(self._session_ids) >= _KEPT:
            self._session_ids.clear()
        self._session_ids[owner] = made
        return made

    def _remember(self, record: SamplerRecord, number: int) -> EndpointSampler:
        if len(self._samplers) >= _KEPT:
            self._samplers.clear()
        made = EndpointSampler(record=record, seq_ids=itertools.count(number * CLONE_STRIDE))
        self._samplers[record.sampling_session_id] = made
        return made


def _digest(served: ServedName) -> str:
    """A digest of the weights for the session's id; equal for equal weights."""
    origin = served.checkpoint.checkpoint_id if served.checkpoint else f"base {served.info.name}"
    return hashlib.sha256(origin.encode()).hexdigest()[:32]


def _record(
    owner: str, session_id: str, sampling_session_id: str, served: ServedName
) -> SamplerRecord:
    checkpoint = served.checkpoint
    return SamplerRecord(
        sampling_session_id=sampling_session_id,
        owner=owner,
        session_id=session_id,
        base_model=served.info.name if checkpoint is None else checkpoint.base_model,
        engine_model=served.info.name if checkpoint is None else checkpoint.engine_model,
        model_path=None if checkpoint is None else checkpoint.tinker_path,
        checkpoint_id=None if checkpoint is None else checkpoint.checkpoint_id,
        created_at=steady_now(),
    )
