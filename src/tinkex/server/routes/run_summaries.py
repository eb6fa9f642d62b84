"""Runs and checkpoints as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection

from tinkex.engine.interface import LoraSpec
from tinkex.server.services import Services
from tinkex.server.submit.run_status import statuses
from tinkex.store import checkpoints, models
from tinkex.store.models import Model
from tinkex.store.run_series import LoggedHead, SeriesHead
from tinkex.types.checkpoint import CHECKPOINT_TYPES, Checkpoint
from tinkex.types.runs import TrainingRunStatus

__all__ = ["StoredRun", "run_page", "show_checkpoint", "show_runs", "some_runs"]


class StoredRun(msgspec.Struct, frozen=True):
    """A run and its newest checkpoint of each kind."""

    model: Model
    newest: dict[str, checkpoints.Checkpoint]


def run_page(
    conn: Connection, me: str, limit: int, offset: int, project_id: str | None
) -> tuple[list[StoredRun], int]:
    """A part of the owner's runs, last used first, and how many there are in all."""
    found, total = models.list_runs(conn, me, limit=limit, offset=offset, project_id=project_id)
    return [_stored(conn, model) for model in found], total


def some_runs(conn: Connection, me: str, run_ids: Sequence[str]) -> list[StoredRun]:
    """Those of these runs that the owner has."""
    found = (models.get(conn, me, run_id) for run_id in run_ids)
    return [_stored(conn, model) for model in found if model is not None]


def show_runs(
    services: Services, runs: Sequence[StoredRun], *, with_spark: bool = False
) -> list[dict[str, Any]]:
    """The runs as the wire has them, with what this server adds."""
    status_of = statuses(services, [each.model for each in runs])
    return [_shown(each, status_of[each.model.model_id], with_spark=with_spark) for each in runs]


def show_checkpoint(found: checkpoints.Checkpoint) -> Checkpoint:
    """The checkpoint as the wire has it."""
    expires = found.expires_at
    return Checkpoint(
        checkpoint_id=f"{found.kind}/{found.name}",
        checkpoint_type=CHECKPOINT_TYPES[found.kind],
        time=datetime.fromtimestamp(found.created_at, UTC),
        tinker_path=found.tinker_path,
        size_bytes=found.size_bytes,
        public=found.is_public,
        user_metadata=found.user_metadata,
        expires_at=None if expires is None else datetime.fromtimestamp(expires, UTC),
    )


def _stored(conn: Connection, model: Model) -> StoredRun:
    saved = checkpoints.list_of_run(conn, model.owner, model.model_id)
    return StoredRun(model, {each.kind: each for each in saved})


def _shown(run: StoredRun, status: TrainingRunStatus, *, with_spark: bool) -> dict[str, Any]:
    model, newest = run.model, {kind: show_checkpoint(one) for kind, one in run.newest.items()}
    head = models.decode_series(model.series)
    spark = {"spark": head.spark} if with_spark else {}
    spec = msgspec.json.decode(model.spec, type=LoraSpec)
    return {
        "training_run_id": model.model_id,
        "base_model": model.base_model,
        "model_owner": model.owner,
        "is_lora": True,
        "corrupted": model.state == "failed",
        "ended": model.state in ("ended", "unloaded"),
        "lora_rank": spec.rank,
        "last_request_time": datetime.fromtimestamp(model.last_request_at, UTC),
        "last_checkpoint": newest.get("weights"),
        "last_sampler_checkpoint": newest.get("sampler_weights"),
        "user_metadata": model.user_metadata,
        "usage": {"tokens": model.num_tokens, "optimizer_steps": model.num_steps},
        "name": model.name,
        "tags": model.tags,
        "status": status,
        "latest": _latest(head, models.decode_logged(model.logged)),
        "resumed_from": model.resumed_from,
        "lora": spec,
        **spark,
    }


def _latest(head: SeriesHead, logged: LoggedHead) -> dict[str, float | None] | None:
    """The last point, and the last value of each metric beside it."""
    if head.latest is None and not logged.metrics:
        return None
    trained = {} if head.latest is None else head.latest.metrics
    time = max(0.0 if head.latest is None else head.latest.time, logged.time)
    counts = {"step": head.step, "time": time, "tokens": head.tokens}
    return {**trained, **logged.metrics, **counts}
