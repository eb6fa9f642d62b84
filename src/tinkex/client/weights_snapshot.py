"""Samplers of a model in training: from its weights as they are now, or from saved ones."""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.client.futures import Future
from tinkex.client.model_operations import ModelWork
from tinkex.client.retry import RetryConfig, RetryPolicy, chosen_policy
from tinkex.client.sampler_creation import open_sampler
from tinkex.client.sampling import SamplingClient
from tinkex.client.session import Session
from tinkex.types.requests import SaveWeightsForSamplerRequest
from tinkex.types.training import ModelID, SavedForSampler

__all__ = [
    "SamplerOptions",
    "open_saved",
    "snapshot_request",
    "snapshot_sampler",
]


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How the new sampling client behaves."""

    retry_config: RetryConfig | None
    record_stability_info: bool
    retry: RetryPolicy | None

    def policy(self, session: Session) -> RetryPolicy | None:
        """Its retries: those that were given, else those of the config."""
        is_retrying = session.connection.config.retry_samples
        return chosen_policy(self.retry, self.retry_config, is_retrying=is_retrying)


def snapshot_sampler(
    session: Session,
    work: ModelWork,
    request: SaveWeightsForSamplerRequest,
    options: SamplerOptions,
) -> Future[SamplingClient]:
    """A client that samples from the weights that the request saves."""

    async def made() -> SamplingClient:
        saved = await sent
        if saved.sampling_session_id is None:
            return await open_saved(session, saved.path, options)
        return SamplingClient(
            session,
            saved.sampling_session_id,
            retry=options.policy(session),
            record_stability_info=options.record_stability_info,
        )

    sent = work.run("/save_weights_for_sampler", request, SavedForSampler, "SaveWeightsForSampler")
    return session.connection.runtime.submit(made())


def snapshot_request(
    session: Session, model_id: ModelID, name: str | None
) -> SaveWeightsForSamplerRequest:
    """Saves under a name, or without one for a sampler that is dropped when it is unused."""
    if name:
        return SaveWeightsForSamplerRequest(model_id=model_id, path=name)
    number = next(session.sampler_seq_ids)
    return SaveWeightsForSamplerRequest(model_id=model_id, sampling_session_seq_id=number)


async def open_saved(
    session: Session, model_path: str | None, options: SamplerOptions
) -> SamplingClient:
    """A client that samples from saved weights; only to be called on the loop."""
    return await open_sampler(
        session,
        model_path=model_path,
        retry=options.policy(session),
        record_stability_info=options.record_stability_info,
    )
