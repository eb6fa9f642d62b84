"""Sampling: sessions to sample from, and samples."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import NotFound, Unprocessable, json_response
from tinkex.server.gate.limits import check_sample, check_text
from tinkex.server.services import Services, owner, services
from tinkex.server.submit.bodies import decode_json, read_body, read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.server.submit.sample_submission import SampleSubmission
from tinkex.server.submit.submission import check_number, submit_route
from tinkex.store import samplers
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import NewSample
from tinkex.types.requests import (
    CreateSamplingSessionRequest,
    JoinSamplingSessionRequest,
    SampleRequest,
)
from tinkex.types.session import (
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    JoinSamplingSessionResponse,
)


async def create(request: Request) -> Response:
    """A sampling session on a base model or on a saved sampler."""
    parts, me = services(request), owner(request)
    asked = await read_json(request, CreateSamplingSessionRequest, parts.config.limits)
    check_number("sampling_session_seq_id", asked.sampling_session_seq_id)
    await parts.session(me, asked.session_id)
    sampler = await _describe(parts, me, asked)
    kept = await parts.db.awrite(samplers.insert, sampler)
    return json_response(
        CreateSamplingSessionResponse(sampling_session_id=kept.sampling_session_id)
    )


async def join(request: Request) -> Response:
    """A number for one more client of a sampling session."""
    parts = services(request)
    asked = await read_json(request, JoinSamplingSessionRequest, parts.config.limits)
    number = await parts.db.awrite(samplers.join, owner(request), asked.sampling_session_id)
    if number is None:
        raise _no_session(asked.sampling_session_id)
    return json_response(JoinSamplingSessionResponse(client_counter=number))


async def asample(request: Request) -> SampleSubmission:
    """A promise of samples; 429 when too many wait."""
    parts, me = services(request), owner(request)
    limits = parts.config.limits
    body = await read_body(request, limits)
    asked = await decode_json(request, body, SampleRequest, limits)
    if asked.sampling_session_id is None or asked.seq_id is None:
        raise Unprocessable(
            "sampling_session_id and seq_id are needed.", hint="Create a sampling session first."
        )
    check_number("seq_id", asked.seq_id, bits=63)
    sampler = await _require(parts, me, asked.sampling_session_id)
    info = (await parts.models()).find(sampler.engine_model)
    cost = check_sample(asked, limits, info.context_length)
    now = steady_now()
    if sampler.model_id is not None:
        parts.sampler_uses[sampler.sampling_session_id] = now
    new = NewSample(
        owner=me,
        sampling_session_id=asked.sampling_session_id,
        seq_id=asked.seq_id,
        body=body,
        digest=hashlib.sha256(body).digest(),
        num_samples=asked.num_samples,
        cost=min(cost, 2**31 - 1),
        may_be_trimmed=now - sampler.created_at > parts.config.result_life_s,
    )
    return SampleSubmission(new, asked)


async def get_sampler(request: Request) -> Response:
    """What a sampling session samples from."""
    parts = services(request)
    sampler = await _require(parts, owner(request), request.path_params["sampler_id"])
    catalog = await parts.models()
    return json_response(
        GetSamplerResponse(
            sampler_id=sampler.sampling_session_id,
            base_model=catalog.loadable_name(sampler.base_model),
            model_path=sampler.model_path,
        )
    )


async def _describe(parts: Services, me: str, asked: CreateSamplingSessionRequest) -> SamplerRecord:
    sampling_session_id = f"{asked.session_id}:sample:{asked.sampling_session_seq_id}"
    if asked.model_path is not None:
        checkpoint = await find_checkpoint(parts, me, asked.model_path, published=True)
        if checkpoint.kind == "external_weights":
            raise Unprocessable(
                f"{asked.model_path} is an export, not a sampler.",
                hint="Use a path of kind 'sampler_weights'.",
                code="wrong-kind",
            )
        return SamplerRecord(
            sampling_session_id=sampling_session_id,
            owner=me,
            session_id=asked.session_id,
            base_model=checkpoint.base_model,
            engine_model=checkpoint.engine_model,
            model_path=asked.model_path,
            checkpoint_id=checkpoint.checkpoint_id,
            created_at=steady_now(),
        )
    if asked.base_model is None:
        raise Unprocessable("One of base_model and model_path must be given.")
    check_text("base_model", asked.base_model, parts.config.limits.max_text_chars)
    info = (await parts.models()).find(asked.base_model)
    return SamplerRecord(
        sampling_session_id=sampling_session_id,
        owner=me,
        session_id=asked.session_id,
        base_model=asked.base_model,
        engine_model=info.name,
        created_at=steady_now(),
    )


async def _require(parts: Services, me: str, sampling_session_id: str) -> SamplerRecord:
    sampler = parts.samplers.get(sampling_session_id)
    if sampler is None or sampler.owner != me:  # same path and timing as an unknown id
        sampler = await parts.db.aread(samplers.get, me, sampling_session_id)
        if sampler is not None:
            parts.remember_sampler(sampler)
    if sampler is None:
        raise _no_session(sampling_session_id)
    return sampler


def _no_session(sampling_session_id: str) -> NotFound:
    return NotFound(
        f"There is no sampling session {sampling_session_id[:200]!r}.",
        code="unknown-sampling-session",
    )


ROUTES = [
    Route("/create_sampling_session", create, methods=["POST"]),
    Route("/join_sampling_session", join, methods=["POST"]),
    submit_route("/asample", asample, SampleSubmission),
    Route("/samplers/{sampler_id}", get_sampler),
]
