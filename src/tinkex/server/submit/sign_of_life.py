"""Signs of life: a client that waits for a sample is there, whatever became of its session."""

from __future__ import annotations

from tinkex.server.services import Services
from tinkex.store.clock import steady_now

__all__ = ["note_sign_of_life"]


def note_sign_of_life(services: Services, owner: str, request_id: str) -> None:
    """Notes that a client waits for the owner's sample, so that it is not cancelled."""
    sampling_session_id = services.scheduler.sampling_session_of(owner, request_id)
    if sampling_session_id is not None:
        services.last_seen[sampling_session_id] = steady_now()
