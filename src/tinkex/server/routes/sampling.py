"""Sampling: sessions to sample from, and samples."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import NotFound, Unprocessable, json_response
from tinkex.server.gate.limits import check_text
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import decode_json, read_body, read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.server.submit.sample_submission import SampleSubmission
from tinkex.server.submit.submission import check_number, submit_route
from tinkex.store import samplers
from tinkex.store.clock import steady_now
from tinkex.store.samplers import SamplerRecord
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
    services, me = services_of(request), owner(request)
    payload = await read_json(request, CreateSamplingSessionRequest, services.config.limits)
    check_number("sampling_session_seq_id", payload.sampling_session_seq_id)
    await services.session(me, payload.session_id)
    sampler = await _describe(services, me, payload)
    kept = await services.db.awrite(samplers.insert, sampler)
    return json_response(
        CreateSamplingSessionResponse(sampling_session_id=kept.sampling_session_id)
    )


async def join(request: Request) -> Response:
    """A number for one more client of a sampling session."""
    services = services_of(request)
    payload = await read_json(request, JoinSamplingSessionRequest, services.config.limits)
    number = await services.db.awrite(samplers.join, owner(request), payload.sampling_session_id)
    if number is None:
        raise _no_session(payload.sampling_session_id)
    return json_response(JoinSamplingSessionResponse(client_counter=number))


async def asample(request: Request) -> SampleSubmission:
    """A promise of samples; 429 when too many wait."""
    services, me = services_of(request), owner(request)
    limits = services.config.limits
    body = await read_body(request, limits)
    payload = await decode_json(request, body, SampleRequest, limits)
    if payload.sampling_session_id is None or payload.seq_id is None:
        raise Unprocessable(
            "sampling_session_id and seq_id are needed.", hint="Create a sampling session first."
        )
    check_number("seq_id", payload.seq_id, bits=63)
    sampler = await _require(services, me, payload.sampling_session_id)
    return await SampleSubmission.of(services, sampler, payload, body)


async def get_sampler(request: Request) -> Response:
    """What a sampling session samples from."""
    services = services_of(request)
    sampler = await _require(services, owner(request), request.path_params["sampler_id"])
    catalog = await services.models()
    return json_response(
        GetSamplerResponse(
            sampler_id=sampler.sampling_session_id,
            base_model=catalog.loadable_name(sampler.base_model),
            model_path=sampler.model_path,
        )
    )


async def _describe(
    services: Services, me: str, payload: CreateSamplingSessionRequest
) -> SamplerRecord:
    sampling_session_id = f"{payload.session_id}:sample:{payload.sampling_session_seq_id}"
    if payload.model_path is not None:
        checkpoint = await find_checkpoint(services, me, payload.model_path, published=True)
        if checkpoint.kind == "external_weights":
            raise Unprocessable(
                f"{payload.model_path} is an export, not a sampler.",
                hint="Use a path of kind 'sampler_weights'.",
                code="wrong-kind",
            )
        return SamplerRecord(
            sampling_session_id=sampling_session_id,
            owner=me,
            session_id=payload.session_id,
            base_model=checkpoint.base_model,
            engine_model=checkpoint.engine_model,
            model_path=payload.model_path,
            checkpoint_id=checkpoint.checkpoint_id,
            created_at=steady_now(),
        )
    if payload.base_model is None:
        raise Unprocessable("One of base_model and model_path must be given.")
    check_text("base_model", payload.base_model, services.config.limits.max_text_chars)
    info = (await services.models()).find(payload.base_model)
    return SamplerRecord(
        sampling_session_id=sampling_session_id,
        owner=me,
        session_id=payload.session_id,
        base_model=payload.base_model,
        engine_model=info.name,
        created_at=steady_now(),
    )


async def _require(services: Services, me: str, sampling_session_id: str) -> SamplerRecord:
    sampler = services.samplers.get(sampling_session_id)
    if sampler is None or sampler.owner != me:  # same path and timing as an unknown id
        sampler = await services.db.aread(samplers.get, me, sampling_session_id)
        if sampler is not None:
            services.remember_sampler(sampler)
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
