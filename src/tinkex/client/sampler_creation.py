"""The making of a sampler on the server."""

from __future__ import annotations

from tinkex.client.retry import RetryPolicy
from tinkex.client.sampling import SamplingClient
from tinkex.client.session import Session
from tinkex.types.requests import CreateSamplingSessionRequest
from tinkex.types.session import CreateSamplingSessionResponse

__all__ = ["open_sampler"]


async def open_sampler(
    session: Session,
    *,
    model_path: str | None = None,
    base_model: str | None = None,
    retry: RetryPolicy | None = None,
    record_stability_info: bool = False,
) -> SamplingClient:
    """A client for a new sampler; only to be called on the loop."""
    request = CreateSamplingSessionRequest(
        session_id=session.session_id,
        sampling_session_seq_id=next(session.sampler_seq_ids),
        base_model=base_model,
        model_path=model_path,
    )
    made = await session.connection.post(
        "/create_sampling_session",
        request,
        CreateSamplingSessionResponse,
        pool="session",
        about={"session_id": session.session_id},
    )
    return SamplingClient(
        session,
        made.sampling_session_id,
        retry=retry,
        record_stability_info=record_stability_info,
    )
