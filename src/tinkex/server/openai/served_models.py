"""What `model` may name: a base model, a `tinker://` path, a run, or a checkpoint by its name."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tinkex.engine.interface import ModelInfo
from tinkex.server.errors import NotFound, Unprocessable
from tinkex.server.gate.auth import user_urn
from tinkex.server.gate.limits import check_text
from tinkex.server.openai.errors import BadParameter, ModelNotFound
from tinkex.server.services import Services
from tinkex.server.submit.checkpoint_lookup import find_checkpoint
from tinkex.store import checkpoint_names, checkpoints
from tinkex.store.checkpoints import Checkpoint
from tinkex.types.checkpoint import PATH_PREFIX

__all__ = ["ServedName", "find_served", "list_served", "shown_model"]

_LISTED = 1000
_SHOWN = 5


class ServedName(msgspec.Struct, frozen=True, kw_only=True):
    """What a name refers to: a base model, or a checkpoint of one."""

    name: str
    info: ModelInfo
    checkpoint: Checkpoint | None = None


async def find_served(services: Services, owner: str, name: str) -> ServedName:
    """The base model or checkpoint that a name refers to.

    Raises:
        ModelNotFound: nothing that the caller may sample from has the name.
        BadParameter: several checkpoints have the name, or it cannot be sampled from.
    """
    check_text("model", name, services.config.limits.max_text_chars)
    catalog = await services.models()
    if name in catalog.names():
        return ServedName(name=name, info=catalog.find(name))
    checkpoint = await _find_checkpoint(services, owner, name)
    if checkpoint.kind == "external_weights":
        raise BadParameter(f"{name} is an export, not a sampler.", param="model", code="wrong-kind")
    try:
        info = catalog.find(checkpoint.engine_model)
    except NotFound as error:
        raise BadParameter(
            f"{name} is a checkpoint of {checkpoint.base_model}, which this server does not serve.",
            param="model",
        ) from error
    return ServedName(name=name, info=info, checkpoint=checkpoint)


async def list_served(services: Services, owner: str) -> list[dict[str, Any]]:
    """Base models, and the caller's newest sampler checkpoints."""
    catalog = await services.models()
    bases = [
        shown_model(ServedName(name=name, info=catalog.find(name)), owner)
        for name in catalog.names()
    ]
    kinds = frozenset({"weights", "external_weights"})
    found, _ = await services.db.aread(
        checkpoints.list_of_owner, owner, limit=_LISTED, offset=0, without=kinds
    )
    return bases + [_shown_checkpoint(each.tinker_path, each, owner) for each in found]


def shown_model(served: ServedName, owner: str) -> dict[str, Any]:
    """The model as `/v1/models` shows it."""
    if served.checkpoint is not None:
        return _shown_checkpoint(served.name, served.checkpoint, owner)
    return {
        "id": served.name,
        "object": "model",
        "created": _STARTED_AT,
        "owned_by": "tinkex",
        "max_model_len": served.info.context_length,
    }


_STARTED_AT = int(time.time())


def _shown_checkpoint(name: str, checkpoint: Checkpoint, owner: str) -> dict[str, Any]:
    is_mine = checkpoint.owner == owner
    return {
        "id": name,
        "object": "model",
        "created": int(checkpoint.created_at),
        "owned_by": user_urn(owner) if is_mine else "public",
        "root": checkpoint.tinker_path,
        "parent": checkpoint.base_model,
    }


async def _find_checkpoint(services: Services, owner: str, name: str) -> Checkpoint:
    if name.startswith(PATH_PREFIX):
        try:
            return await find_checkpoint(services, owner, name, published=True)
        except Unprocessable as error:
            raise BadParameter(
                error.message, param="model", hint=error.hint, code=error.code
            ) from error
        except NotFound as error:
            raise _not_found(name) from error
    found = await services.db.aread(checkpoint_names.find_all, owner, name)
    if not found:
        raise _not_found(name)
    if len(found) > 1:
        paths = ", ".join(each.tinker_path for each in found[:_SHOWN])
        raise BadParameter(
            f"{len(found)} checkpoints have the name {name!r}: {paths}"
            f"{', ...' if len(found) > _SHOWN else ''}.",
            param="model",
            hint="Give the tinker:// path of one of them.",
            code="ambiguous-model",
        )
    return found[0]


def _not_found(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"The model {name[:300]!r} does not exist or you do not have access to it.",
        hint="GET /v1/models lists what you can sample from.",
    )
