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
from tinkex.server.services import Services, owner, services
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.checkpoint_lookup import find_checkpoint, parse_path
from tinkex.server.submit.model_submission import (
    ModelSubmission,
    NewModelSubmission,
    require_model,
)
from tinkex.server.submit.sequence_numbers import numbered_route
from tinkex.server.submit.submission import check_number
from tinkex.store import checkpoints, models, sessions
from tinkex.store.checkpoints import Checkpoint
from tinkex.store.models import Model
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
    parts, me = services(request), owner(request)
    asked = await read_json(request, LoadWeightsRequest, parts.config.limits)
    parse_path(asked.path)
    as_owner = await _reader(parts, me, asked.weights_access_token)
    command = LoadCommand(path=asked.path, optimizer=asked.optimizer, as_owner=as_owner)
    if asked.model_id is not None:
        return ModelSubmission(
            me,
            model_id=asked.model_id,
            seq_id=asked.seq_id,
            kind="load_weights",
            body=json.encode(command),
            request=command,
        )
    return await _create_by_loading(parts, me, asked, command)


async def weights_info(request: Request) -> Response:
    """What saved weights were trained with."""
    parts = services(request)
    asked = await read_json(request, WeightsInfoRequest, parts.config.limits)
    me = await _reader(parts, owner(request), request.headers.get("x-tinker-weights-access-token"))
    checkpoint = await find_checkpoint(parts, me, asked.tinker_path, published=True)
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
            optimizer_config=checkpoint.optimizer_config,
        )
    )


async def copy_weights(request: Request) -> Response:
    """A copy of a checkpoint, one's own, a public one or another account's with its key."""
    parts, me = services(request), owner(request)
    asked = await read_json(request, CopyWeightsRequest, parts.config.limits)
    token = asked.weights_access_token or request.headers.get("x-tinker-weights-access-token")
    reader = await _reader(parts, me, token)
    limits = parts.config.limits
    check_ttl(asked.ttl_seconds, limits)
    check_text("destination_project_id", asked.destination_project_id, limits.max_text_chars)
    await _check_disk(parts, me)
    source = await find_checkpoint(parts, reader, asked.source_path, published=True)
    folders = parts.scheduler.folders
    now = time.time()
    copy = msgspec.structs.replace(
        source,
        checkpoint_id=folders.new_id(),
        owner=me,
        is_public=False,
        created_at=now,
        expires_at=None if asked.ttl_seconds is None else now + asked.ttl_seconds,
    )
    async with ReleasedSlot():
        await asyncio.to_thread(folders.copy_checkpoint, source, copy.checkpoint_id)
    crashpoints.passing("checkpoint.copied")
    kept = await parts.db.awrite(_insert_copy, copy, asked.destination_project_id)
    return json_response({"tinker_path": kept.tinker_path})


async def _save(request: Request, type_: type[S]) -> ModelSubmission:
    parts, me = services(request), owner(request)
    asked = await read_json(request, type_, parts.config.limits)
    command = await _save_command(parts, me, asked)
    await _check_disk(parts, me)
    # Sent again, an unnamed save asks for another sampling session: it is still the same one.
    identity = msgspec.structs.replace(command, sampling_session_id=None)
    return ModelSubmission(
        me,
        model_id=asked.model_id,
        seq_id=asked.seq_id,
        kind="save_sampler" if command.name is None else asked.type,
        body=json.encode(command),
        identity=json.encode(identity),
        request=command,
    )


async def _save_command(parts: Services, me: str, asked: SaveRequest) -> SaveCommand:
    limits = parts.config.limits
    check_ttl(asked.ttl_seconds, limits)
    metadata = getattr(asked, "user_metadata", None)
    check_metadata(metadata, limits)
    recipients = getattr(asked, "age_encryption_recipients", None)
    check_recipients(recipients, limits)
    check_text("path", asked.path, limits.max_name_chars)
    command = SaveCommand(
        kind=_KINDS[asked.type],
        name=asked.path,
        overwrite=getattr(asked, "overwrite", False),
        ttl_seconds=asked.ttl_seconds,
        user_metadata=metadata,
        age_recipients=recipients,
    )
    number = getattr(asked, "sampling_session_seq_id", None)
    if asked.path is None and number is not None:
        check_number("sampling_session_seq_id", number)
        session_id = (await require_model(parts, me, asked.model_id)).session_id
        return msgspec.structs.replace(command, sampling_session_id=f"{session_id}:sample:{number}")
    if asked.path is None:
        # Sent again it gets the same name, or it would look like another request.
        identity = f"{asked.model_id} {uuid.uuid4() if asked.seq_id is None else asked.seq_id}"
        name = f"unnamed-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        return msgspec.structs.replace(command, name=name)
    if not is_checkpoint_name(asked.path):
        raise Unprocessable(
            f"{asked.path[:100]!r} is not a checkpoint name.",
            hint="Use letters, digits, '.', '_' and '-', beginning with a letter or digit.",
            code="invalid-name",
        )
    return command


async def _create_by_loading(
    parts: Services, me: str, asked: LoadWeightsRequest, command: LoadCommand
) -> NewModelSubmission:
    if asked.session_id is None or asked.model_seq_id is None:
        raise Unprocessable("Either model_id or session_id and model_seq_id must be given.")
    check_number("model_seq_id", asked.model_seq_id)
    await parts.session(me, asked.session_id)
    checkpoint = await find_checkpoint(parts, command.as_owner, command.path, published=True)
    catalog = await parts.models()
    base_model = asked.base_model or checkpoint.base_model
    if not catalog.is_same_base(base_model, checkpoint.engine_model):
        raise Unprocessable(
            f"{command.path} was trained on {checkpoint.base_model}, not on {base_model}.",
            code="wrong-base-model",
        )
    optimizer_config = checkpoint.optimizer_config
    if asked.optimizer_config is not None:
        optimizer_config = msgspec.to_builtins(asked.optimizer_config)
    if command.optimizer:
        _check_optimizer(command.path, checkpoint, optimizer_config)
    check_metadata(asked.user_metadata, parts.config.limits)
    check_text("base_model", base_model, parts.config.limits.max_text_chars)
    now = time.time()
    model = Model(
        model_id=f"{asked.session_id}:train:{asked.model_seq_id}",
        owner=me,
        session_id=asked.session_id,
        base_model=base_model,
        engine_model=checkpoint.engine_model,
        spec=checkpoint.spec,
        optimizer_config=optimizer_config,
        user_metadata=asked.user_metadata,
        state="creating",
        created_at=now,
        last_request_at=now,
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


async def _reader(parts: Services, me: str, token: str | None) -> str:
    """Whose checkpoints may be read: the caller's, or those of the key given as a token."""
    if token is None:
        return me
    return (await parts.keyring.authenticate(token)).owner


async def _check_disk(parts: Services, me: str) -> None:
    """Refuses to write files while the disk is all but full, and above the caller's quota."""
    parts.check_disk()  # first: it passes, and clients try again
    await parts.db.aread(parts.scheduler.disk_quota.check, me)


def _insert_copy(conn: Connection, copy: Checkpoint, project_id: str | None) -> Checkpoint:
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
