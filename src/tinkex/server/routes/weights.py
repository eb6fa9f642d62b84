"""Saving and loading weights, and what saved weights are."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex import crashpoints
from tinkex.engine.interface import LoraSpec
from tinkex.scheduler.operation_bodies import LoadCommand, SaveCommand
from tinkex.server.errors import Unprocessable, json_response
from tinkex.server.gate.admission import ReleasedSlot
from tinkex.server.gate.limits import check_metadata, check_recipients, check_text, check_ttl
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint, parse_path
from tinkex.server.submit.model_submission import (
    ModelSubmission,
    NewModelSubmission,
    require_model,
)
from tinkex.server.submit.run_names import name_in, tags_in
from tinkex.server.submit.sequence_numbers import numbered_route
from tinkex.server.submit.submission import check_number
from tinkex.store import checkpoints, models, sessions
from tinkex.store.checkpoints import Checkpoint
from tinkex.store.models import Model
from tinkex.types.optimizers import read_optimizer_config
from tinkex.types.requests import (
    CopyWeightsRequest,
    LoadWeightsRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
    WeightsInfoRequest,
)
from tinkex.types.training import WeightsInfoResponse
from tinkex.wire import json
from tinkex.wire.paths import is_checkpoint_name

_KINDS = {
    "save_weights": "weights",
    "save_weights_for_sampler": "sampler_weights",
    "save_weights_external": "external_weights",
}
SaveRequest = SaveWeightsRequest | SaveWeightsForSamplerRequest | SaveWeightsExternalRequest
S = TypeVar("S", SaveWeightsRequest, SaveWeightsForSamplerRequest, SaveWeightsExternalRequest)


async def save_weights(request: Request) -> ModelSubmission:
    """A promise of training state saved under a name."""
    return await _save(request, SaveWeightsRequest)


async def save_weights_for_sampler(request: Request) -> ModelSubmission:
    """A promise of a sampler, named or for one sampling session."""
    return await _save(request, SaveWeightsForSamplerRequest)


async def save_weights_external(request: Request) -> ModelSubmission:
    """A promise of weights exported for download."""
    return await _save(request, SaveWeightsExternalRequest)


async def load_weights(request: Request) -> ModelSubmission:
    """A promise of saved weights in a model, an old one or a new one."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, LoadWeightsRequest, services.config.limits)
    parse_path(payload.path)
    as_owner = await _reader(services, me, payload.weights_access_token)
    command = LoadCommand(path=payload.path, optimizer=payload.optimizer, as_owner=as_owner)
    if payload.model_id is not None:
        return ModelSubmission(
            me,
            model_id=payload.model_id,
            seq_id=payload.seq_id,
            kind="load_weights",
            body=json.encode(command),
            request=command,
        )
    return await _create_by_loading(services, me, payload, command)


async def weights_info(request: Request) -> Response:
    """What saved weights were trained with."""
    services = services_of(request)
    payload = await read_json(request, WeightsInfoRequest, services.config.limits)
    me = await _reader(
        services, owner(request), request.headers.get("x-tinker-weights-access-token")
    )
    checkpoint = await find_checkpoint(services, me, payload.tinker_path, published=True)
    spec = msgspec.json.decode(checkpoint.spec, type=LoraSpec)
    return json_response(
        WeightsInfoResponse(
            base_model=checkpoint.base_model,
            is_lora=True,
            lora_rank=spec.rank,
            lora_alpha=spec.alpha,
            train_unembed=spec.train_unembed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
            optimizer_config=read_optimizer_config(checkpoint.optimizer_config),
        )
    )


async def copy_weights(request: Request) -> Response:
    """A copy of a checkpoint, one's own, a public one or another account's with its key."""
    services, me = services_of(request), owner(request)
    payload = await read_json(request, CopyWeightsRequest, services.config.limits)
    token = payload.weights_access_token or request.headers.get("x-tinker-weights-access-token")
    reader = await _reader(services, me, token)
    limits = services.config.limits
    check_ttl(payload.ttl_seconds, limits)
    check_text("destination_project_id", payload.destination_project_id, limits.max_text_chars)
    await _check_disk(services, me)
    source = await find_checkpoint(services, reader, payload.source_path, published=True)
    folders = services.scheduler.folders
    now = time.time()
    copy = msgspec.structs.replace(
        source,
        checkpoint_id=folders.new_id(),
        owner=me,
        is_public=False,
        created_at=now,
        expires_at=None if payload.ttl_seconds is None else now + payload.ttl_seconds,
    )
    async with ReleasedSlot():
        await asyncio.to_thread(folders.copy_checkpoint, source, copy.checkpoint_id)
    crashpoints.passing("checkpoint.copied")
    kept = await services.db.awrite(_insert_copy, source, copy, payload.destination_project_id)
    return json_response({"tinker_path": kept.tinker_path})


async def _save(request: Request, type_: type[S]) -> ModelSubmission:
    services, me = services_of(request), owner(request)
    payload = await read_json(request, type_, services.config.limits)
    command = await _save_command(services, me, payload)
    await _check_disk(services, me)
    # A repeated unnamed save names another sampling session, but is the same operation.
    identity = msgspec.structs.replace(command, sampling_session_id=None)
    return ModelSubmission(
        me,
        model_id=payload.model_id,
        seq_id=payload.seq_id,
        kind="save_sampler" if command.name is None else payload.type,
        body=json.encode(command),
        identity=json.encode(identity),
        request=command,
    )


async def _save_command(services: Services, me: str, payload: SaveRequest) -> SaveCommand:
    limits = services.config.limits
    check_ttl(payload.ttl_seconds, limits)
    metadata = getattr(payload, "user_metadata", None)
    check_metadata(metadata, limits)
    recipients = getattr(payload, "age_encryption_recipients", None)
    check_recipients(recipients, limits)
    check_text("path", payload.path, limits.max_name_chars)
    command = SaveCommand(
        kind=_KINDS[payload.type],
        name=payload.path,
        overwrite=getattr(payload, "overwrite", False),
        ttl_seconds=payload.ttl_seconds,
        user_metadata=metadata,
        age_recipients=recipients,
    )
    number = getattr(payload, "sampling_session_seq_id", None)
    if payload.path is None and number is not None:
        check_number("sampling_session_seq_id", number)
        session_id = (await require_model(services, me, payload.model_id)).session_id
        return msgspec.structs.replace(command, sampling_session_id=f"{session_id}:sample:{number}")
    if payload.path is None:
        # Sent again it gets the same name, or it would look like another request.
        save_id = uuid.uuid4() if payload.seq_id is None else payload.seq_id
        identity = f"{payload.model_id} {save_id}"
        name = f"unnamed-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        return msgspec.structs.replace(command, name=name)
    if not is_checkpoint_name(payload.path):
        raise Unprocessable(
            f"{payload.path[:100]!r} is not a checkpoint name.",
            hint="Use letters, digits, '.', '_' and '-', beginning with a letter or digit.",
            code="invalid-name",
        )
    return command


async def _create_by_loading(
    services: Services, me: str, payload: LoadWeightsRequest, command: LoadCommand
) -> NewModelSubmission:
    if payload.session_id is None or payload.model_seq_id is None:
        raise Unprocessable("Either model_id or session_id and model_seq_id must be given.")
    check_number("model_seq_id", payload.model_seq_id)
    await services.session(me, payload.session_id)
    checkpoint = await find_checkpoint(services, command.as_owner, command.path, published=True)
    catalog = await services.models()
    base_model = payload.base_model or checkpoint.base_model
    if not catalog.is_same_base(base_model, checkpoint.engine_model):
        raise Unprocessable(
            f"{command.path} was trained on {checkpoint.base_model}, not on {base_model}.",
            code="wrong-base-model",
        )
    optimizer_config = checkpoint.optimizer_config
    if payload.optimizer_config is not None:
        optimizer_config = msgspec.to_builtins(payload.optimizer_config)
    if command.optimizer:
        _check_optimizer(command.path, checkpoint, optimizer_config)
    check_metadata(payload.user_metadata, services.config.limits)
    check_text("base_model", base_model, services.config.limits.max_text_chars)
    now = time.time()
    limits, metadata = services.config.limits, payload.user_metadata
    resumed = await services.db.aread(checkpoints.resumed, me, checkpoint)
    chain = models.resumed_values(resumed)
    chain["name"] = name_in(metadata, limits) or resumed.name
    chain["tags"] = {**resumed.tags, **tags_in(metadata, limits)}
    model = Model(
        model_id=f"{payload.session_id}:train:{payload.model_seq_id}",
        owner=me,
        session_id=payload.session_id,
        base_model=base_model,
        engine_model=checkpoint.engine_model,
        spec=checkpoint.spec,
        optimizer_config=optimizer_config,
        user_metadata=payload.user_metadata,
        state="creating",
        created_at=now,
        last_request_at=now,
        **chain,
    )
    return NewModelSubmission(model, "load_weights", json.encode(command))


def _check_optimizer(path: str, checkpoint: Checkpoint, wanted: dict[str, Any]) -> None:
    saved = checkpoint.optimizer_config.get("type")
    if saved != wanted.get("type"):
        raise Unprocessable(
            f"{path} holds the state of the optimizer {saved!r}, not of {wanted.get('type')!r}.",
            hint="Leave the optimizer out, or load the weights alone.",
            code="wrong-optimizer",
        )


async def _reader(services: Services, me: str, token: str | None) -> str:
    """Whose checkpoints may be read: the caller's, or those of the key given as a token."""
    if token is None:
        return me
    return (await services.keyring.authenticate(token)).owner


async def _check_disk(services: Services, me: str) -> None:
    """Refuses to write files while the disk is all but full, and above the caller's quota."""
    services.check_disk()  # first: it passes, and clients try again
    await services.db.aread(services.scheduler.disk_quota.check, me)


def _insert_copy(
    conn: Connection, source: Checkpoint, copy: Checkpoint, project_id: str | None
) -> Checkpoint:
    """The copy, now of a run of its own in a finished session of the project."""
    session_id = sessions.create(
        conn, copy.owner, tags=[], user_metadata={}, sdk_version="", project_id=project_id
    )
    sessions.finish(conn, copy.owner, session_id, "success", "Holds copied weights.")
    copy = msgspec.structs.replace(copy, model_id=f"{session_id}:train:0")
    models.insert(
        conn,
        Model(
            model_id=copy.model_id,
            owner=copy.owner,
            session_id=session_id,
            base_model=copy.base_model,
            engine_model=copy.engine_model,
            spec=copy.spec,
            optimizer_config=copy.optimizer_config,
            user_metadata=None,
            state="imported",
            created_at=copy.created_at,
            last_request_at=copy.created_at,
            **models.resumed_values(checkpoints.resumed(conn, copy.owner, source)),
        ),
    )
    checkpoints.put(conn, copy)
    return copy


ROUTES = [
    numbered_route("/save_weights", save_weights),
    numbered_route("/save_weights_for_sampler", save_weights_for_sampler),
    numbered_route("/save_weights_external", save_weights_external),
    numbered_route("/load_weights", load_weights),
    Route("/weights_info", weights_info, methods=["POST"]),
    Route("/copy_weights", copy_weights, methods=["POST"]),
]
