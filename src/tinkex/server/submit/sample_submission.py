"""Submissions of sampling requests: numbered by their sampling session, in no order."""

from __future__ import annotations

import hashlib

import msgspec

from tinkex.server.errors import Busy
from tinkex.server.gate.limits import check_sample
from tinkex.server.services import Services
from tinkex.server.submit.checkpoint_lookup import parse_path
from tinkex.server.submit.submission import Submission
from tinkex.store import samples
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import NewSample, Sample
from tinkex.types.requests import SampleRequest
from tinkex.types.session import UntypedPromise

__all__ = ["SampleSubmission"]


class SampleSubmission(Submission[Sample]):
    """One sampling request, and its body decoded."""

    kind = "sample"

    def __init__(self, new: NewSample, request: SampleRequest) -> None:
        self._new = new
        self._request = request

    @classmethod
    async def of(
        cls, services: Services, sampler: SamplerRecord, request: SampleRequest, body: bytes
    ) -> SampleSubmission:
        """The submission of a request to this sampling session; `body` is the request as JSON.

        Raises:
            LimitExceeded: it is above one of the server's limits.
        """
        info = (await services.models()).find(sampler.engine_model)
        cost = check_sample(request, services.config.limits, info.context_length)
        now = steady_now()
        if sampler.model_id is not None:
            services.sampler_uses[sampler.sampling_session_id] = now
        assert request.seq_id is not None, "the caller has checked it"
        new = NewSample(
            owner=sampler.owner,
            sampling_session_id=sampler.sampling_session_id,
            seq_id=request.seq_id,
            body=body,
            digest=hashlib.sha256(body).digest(),
            num_samples=request.num_samples,
            cost=min(cost, 2**31 - 1),
            run_id=_run_of(sampler),
            may_be_trimmed=now - sampler.created_at > services.config.result_life_s,
        )
        return cls(new, request)

    @staticmethod
    def check_room(services: Services, owner: str) -> None:
        scheduler, config = services.scheduler, services.config
        if scheduler.pending_samples() >= config.max_pending_samples:
            most = config.max_pending_samples
            raise Busy(f"{most} sampling requests wait on this server already.")
        if scheduler.pending_samples(owner) >= config.max_pending_samples_per_owner:
            most = config.max_pending_samples_per_owner
            raise Busy(f"{most} sampling requests of yours are waiting already.")

    async def keep(self, services: Services, key_id: int) -> tuple[Sample, bool]:
        new = msgspec.structs.replace(self._new, key_id=key_id)
        sample, is_new = await services.db.awrite(samples.append, new)
        services.last_seen[sample.sampling_session_id] = steady_now()
        return sample, is_new

    def is_scheduled(self, services: Services, row: Sample) -> bool:
        return services.scheduler.has_sample(row.request_id)

    async def schedule(self, services: Services, row: Sample) -> None:
        services.scheduler.enqueue_sample(row, self._request)

    def promise(self, row: Sample) -> UntypedPromise:
        sequence_ids = [f"{row.request_id}-{index}" for index in range(row.num_samples)]
        return UntypedPromise(request_id=row.request_id, sample_sequence_ids=sequence_ids)


def _run_of(sampler: SamplerRecord) -> str | None:
    """The run whose weights are sampled from; None is the base model."""
    if sampler.model_path is None:
        return sampler.model_id
    return parse_path(sampler.model_path).run_id
