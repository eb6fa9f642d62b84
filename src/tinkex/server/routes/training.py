"""Training: models, forward and backward passes, optimizer steps."""

from __future__ import annotations

import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.engine.interface import EngineUserError, LoraSpec
from tinkex.engine.validation import check_same_optimizer
from tinkex.server.errors import Unprocessable, json_response
from tinkex.server.gate.limits import check_metadata, check_rank, check_text, check_training
from tinkex.server.routes.custom_losses import check_custom_loss
from tinkex.server.services import owner, services_of
from tinkex.server.submit.bodies import decode, read_body, read_json
from tinkex.server.submit.model_submission import (
    ModelSubmission,
    NewModelSubmission,
    require_model,
)
from tinkex.server.submit.run_names import name_in, tags_in
from tinkex.server.submit.sequence_numbers import is_json, numbered_route
from tinkex.server.submit.submission import check_number, submit_route
from tinkex.store.models import Model
from tinkex.types.optimizers import optimizer_name, read_optimizer_config
from tinkex.types.requests import (
    CreateModelRequest,
    ForwardBackwardRequest,
    GetInfoRequest,
    OptimStepRequest,
)
from tinkex.types.training import GetInfoResponse, LoraConfig, ModelData
from tinkex.wire import json, legacy_json, protobuf
from tinkex.wire.limits import Limits


async def create_model(request: Request) -> NewModelSubmission:
    """A promise of a fresh adapter. Its id is known at once: `<session>:train:<number>`."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, CreateModelRequest, services.config.limits)
    check_number("model_seq_id", payload.model_seq_id)
    await services.session(me, payload.session_id)
    info = (await services.models()).find(payload.base_model)
    check_metadata(payload.user_metadata, services.config.limits)
    check_text("base_model", payload.base_model, services.config.limits.max_text_chars)
    lora = payload.lora_config or LoraConfig()
    check_rank(lora.rank, min(info.max_rank, services.config.limits.max_rank))
    now = time.time()
    model = Model(
        model_id=f"{payload.session_id}:train:{payload.model_seq_id}",
        owner=me,
        session_id=payload.session_id,
        base_model=payload.base_model,
        engine_model=info.name,
        spec=msgspec.json.encode(_spec(lora)).decode(),
        optimizer_config=msgspec.to_builtins(payload.optimizer_config),
        user_metadata=payload.user_metadata,
        state="creating",
        created_at=now,
        last_request_at=now,
        name=name_in(payload.user_metadata, services.config.limits),
        tags=tags_in(payload.user_metadata, services.config.limits),
    )
    return NewModelSubmission(model, "create_model", json.encode(payload))


async def forward_backward(request: Request) -> ModelSubmission:
    """A promise of a forward pass, with or without a backward pass."""
    services, me = services_of(request), owner(request)
    limits, is_old = services.config.limits, is_json(request)
    sent = await read_body(request, limits)
    payload, body, cost = await decode(
        request, sent, lambda: _decode(sent, is_old, limits), is_json=is_old
    )
    await check_custom_loss(services, me, payload)
    return ModelSubmission(
        me,
        model_id=payload.model_id,
        seq_id=payload.seq_id or None,
        kind="forward" if payload.forward_only else "forward_backward",
        body=body,
        cost=cost,
        request=payload,
    )


async def optim_step(request: Request) -> ModelSubmission:
    """A promise of an optimizer step."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, OptimStepRequest, services.config.limits)
    _check_optimizer(await services.optimizer(me, payload.model_id), optimizer_name(payload.params))
    return ModelSubmission(
        me,
        model_id=payload.model_id,
        seq_id=payload.seq_id,
        kind="optim_step",
        body=json.encode(payload),
        request=payload,
    )


async def get_info(request: Request) -> Response:
    """What the server knows about a model."""
    services = services_of(request)
    payload = await read_json(request, GetInfoRequest, services.config.limits)
    model = await require_model(services, owner(request), payload.model_id)
    catalog = await services.models()
    info = catalog.find(model.engine_model)
    spec = msgspec.json.decode(model.spec, type=LoraSpec)
    answer = GetInfoResponse(
        model_id=model.model_id,
        is_lora=True,
        lora_rank=spec.rank,
        lora_alpha=spec.alpha,
        model_name=model.base_model,
        model_data=ModelData(
            arch=info.arch,
            model_name=model.base_model,
            tokenizer_id=catalog.tokenizer_id(info),
        ),
        optimizer_config=read_optimizer_config(model.optimizer_config),
    )
    return json_response({"type": "get_info", **msgspec.to_builtins(answer)})


def _decode(body: bytes, is_old: bool, limits: Limits) -> tuple[ForwardBackwardRequest, bytes, int]:
    """The request, the protobuf form to keep, and its tokens."""
    if is_old:
        payload = legacy_json.decode_forward_backward_request(body, limits=limits)
        pieces = protobuf.encode_forward_backward_request(
            model_id=payload.model_id,
            seq_id=payload.seq_id,
            data=payload.data,
            loss_fn=payload.loss_fn,
            loss_fn_config=payload.loss_fn_config,
            forward_only=payload.forward_only,
        )
        body = b"".join(pieces)
    else:
        payload = protobuf.decode_forward_backward_request(body, limits=limits)
    return payload, body, check_training(payload, limits)


def _check_optimizer(held: str | None, given: str) -> None:
    try:
        check_same_optimizer(held, given)
    except EngineUserError as error:
        raise Unprocessable(str(error), code=error.code) from error


def _spec(config: LoraConfig) -> LoraSpec:
    seed = secrets.randbits(31) if config.seed is None else config.seed
    return LoraSpec(
        rank=config.rank,
        alpha=LoraSpec().alpha if config.alpha is None else config.alpha,
        seed=seed,
        train_attn=config.train_attn,
        train_mlp=config.train_mlp,
        train_unembed=config.train_unembed,
    )


ROUTES = [
    submit_route("/create_model", create_model, NewModelSubmission),
    numbered_route("/forward_backward", forward_backward, may_be_protobuf=True),
    numbered_route("/forward", forward_backward, may_be_protobuf=True),
    numbered_route("/optim_step", optim_step),
    Route("/get_info", get_info, methods=["POST"]),
]
