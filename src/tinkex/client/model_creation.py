"""How a model in training is created: from a base model, or from saved weights."""

from __future__ import annotations

from typing import Any

from tinkex.client.poller import Promise
from tinkex.client.session import Session
from tinkex.client.training import TrainingClient
from tinkex.errors import ValidationError
from tinkex.types._extensions import LORA_ALPHA
from tinkex.types.optimizers import (
    AdamOptimizerConfig,
    OptimizerConfig,
    OtherOptimizerConfig,
    optimizer_name,
)
from tinkex.types.requests import CreateModelRequest, LoadWeightsRequest, WeightsInfoRequest
from tinkex.types.training import (
    CreateModelResponse,
    LoadWeightsResponse,
    LoraConfig,
    WeightsInfoResponse,
)
from tinkex.wire import json as wire_json

__all__ = ["create_from_state", "create_model"]


async def create_model(
    session: Session,
    base_model: str,
    lora: LoraConfig,
    user_metadata: dict[str, str] | None,
    optimizer: OptimizerConfig | None,
) -> TrainingClient:
    """A client that trains a new adapter; only to be called on the loop."""
    if lora.alpha is not None and LORA_ALPHA not in session.connection.flags.extensions:
        raise ValidationError(
            f"alpha={lora.alpha!r} cannot be used: this server has not announced that it "
            "takes an alpha.",
            hint="Leave alpha out, or use a Tinkex server of this version.",
        )
    optimizer = optimizer or AdamOptimizerConfig()
    session.connection.require_optimizer(optimizer_name(optimizer))
    request = CreateModelRequest(
        session_id=session.session_id,
        model_seq_id=next(session.model_seq_ids),
        base_model=base_model,
        user_metadata=user_metadata,
        lora_config=lora,
        optimizer_config=optimizer,
    )
    made = await _finished(session, "/create_model", request, "CreateModel")
    return TrainingClient(session, wire_json.decode(made, CreateModelResponse).model_id)


async def _finished(session: Session, path: str, request: Any, request_type: str) -> bytes:
    """The result of work that belongs to a session rather than to a model's order."""
    promise: Promise
    promise, _ = await session.connection.promise(
        path,
        (wire_json.encode(request),),
        request_type=request_type,
        about={"session_id": session.session_id},
    )
    return (await session.connection.fetch(promise)).body


async def create_from_state(
    session: Session,
    path: str,
    base_model: str | None,
    user_metadata: dict[str, str] | None,
    weights_access_token: str | None,
    optimizer: OptimizerConfig | None,
    *,
    resumes: bool,
) -> TrainingClient:
    """A client that goes on from saved weights; only to be called on the loop."""
    if optimizer is not None:
        session.connection.require_optimizer(optimizer_name(optimizer))
    if session.connection.flags.create_model_via_load_weights:
        return await _create_by_loading(
            session,
            LoadWeightsRequest(
                session_id=session.session_id,
                model_seq_id=next(session.model_seq_ids),
                base_model=base_model,
                user_metadata=user_metadata,
                path=path,
                optimizer=resumes,
                optimizer_config=optimizer,
                weights_access_token=weights_access_token,
            ),
        )
    info = await session.connection.post(
        "/weights_info", WeightsInfoRequest(tinker_path=path), WeightsInfoResponse
    )
    training = await create_model(
        session,
        base_model or info.base_model,
        _lora_of(info),
        user_metadata,
        optimizer or _optimizer_of(info),
    )
    load = training.load_state_with_optimizer if resumes else training.load_state
    await load(path, weights_access_token)
    return training


async def _create_by_loading(session: Session, request: LoadWeightsRequest) -> TrainingClient:
    body = await _finished(session, "/load_weights", request, "LoadWeights")
    wire_json.decode(body, LoadWeightsResponse)
    return TrainingClient(session, f"{session.session_id}:train:{request.model_seq_id}")


def _lora_of(info: WeightsInfoResponse) -> LoraConfig:
    """The adapter that saved weights fit into; a switch that was not recorded was on."""
    return LoraConfig(
        rank=info.lora_rank or LoraConfig().rank,
        train_unembed=info.train_unembed is not False,
        train_mlp=info.train_mlp is not False,
        train_attn=info.train_attn is not False,
        alpha=info.lora_alpha,
    )


def _optimizer_of(info: WeightsInfoResponse) -> OptimizerConfig:
    """The optimizer whose state saved weights have."""
    found = info.optimizer_config
    if isinstance(found, OtherOptimizerConfig):
        raise ValidationError(f"The checkpoint's optimizer {found.type!r} is not known here.")
    return found
