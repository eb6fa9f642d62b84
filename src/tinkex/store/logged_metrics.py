"""Metrics that users log for a run: points beside those of training; each call is stored once."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, func, select

from tinkex.errors import ClientError
from tinkex.store import models, run_points
from tinkex.store.run_points import THIN_EVERY
from tinkex.store.run_series import LoggedHead, PointBody
from tinkex.store.schema import operations

__all__ = ["LoggedCall", "TooManyMetrics", "log"]

_MAX_NAMES = 256
"""Maximum different metrics that users may log for one run."""

_CALLS_KEPT = 32
_MAX_TAKEN = 64  # operations of a run that the engine may have, before the next one to run


class TooManyMetrics(ClientError):
    """422: the run has the maximum number of different logged metrics."""

    code = "too-many-metrics"
    status = 422


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `next_seq` is the number of the run's next operation, if that is known."""

    metrics: Mapping[str, float | None]
    step: int | None
    after_seq: int | None
    next_seq: int | None
    call_id: str | None


def log(conn: Connection, owner: str, model_id: str, call: LoggedCall) -> tuple[int, int] | None:
    """Stores the call; returns the step and the number of its point, or None without such a run.

    A call that was kept before, by its id among the last ones, adds nothing.

    Raises:
        TooManyMetrics: the run would have too many different ones.
    """
    model = models.get(conn, owner, model_id)
    if model is None:
        return None
    head, logged = models.decode_series(model.series), models.decode_logged(model.logged)
    step = head.step + _steps_to_come(conn, call, model_id) if call.step is None else call.step
    if call.call_id is None or call.call_id not in logged.call_ids:
        now = time.time()
        logged = _with_call(logged, call, now)
        point = PointBody(step, now, head.tokens, dict(call.metrics))
        run_points.add(conn, {model_id: point})
        models.set_logged(conn, model_id, logged)
        if logged.num_points % THIN_EVERY == 0:
            run_points.thin(conn, model_id)
    return step, run_points.last_number(conn, model_id)


def _with_call(logged: LoggedHead, call: LoggedCall, now: float) -> LoggedHead:
    metrics = {**logged.metrics, **call.metrics}
    if len(metrics) > _MAX_NAMES:
        raise TooManyMetrics(
            f"The run would have {len(metrics)} different logged metrics, above this server's "
            f"limit of {_MAX_NAMES}.",
            hint="Log under fewer names: a number that changes belongs into the value.",
        )
    call_ids = [*logged.call_ids, *([] if call.call_id is None else [call.call_id])]
    return LoggedHead(metrics, now, logged.num_points + 1, call_ids[-_CALLS_KEPT:])


def _steps_to_come(conn: Connection, call: LoggedCall, model_id: str) -> int:
    """Returns the number of optimizer steps that run before the call's place
    in the request order."""
    if call.after_seq is None or call.next_seq is None:
        return 0
    query = select(func.count()).where(
        operations.c.model_id == model_id,
        operations.c.seq_id <= call.after_seq,
        operations.c.seq_id >= call.next_seq - _MAX_TAKEN,
        operations.c.kind == "optim_step",
        operations.c.state == "queued",
    )
    return int(conn.execute(query).scalar_one())
