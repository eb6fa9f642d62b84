"""Outcomes of operations: results, usage and points of runs, in one write."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, bindparam, case, null, update

from tinkex.store import models, run_points, usage_sums
from tinkex.store.bulk_sql import update_rows
from tinkex.store.compiled_sql import Prepared
from tinkex.store.operations import REPLAYED, Operation
from tinkex.store.results import Result, keep, keep_all
from tinkex.store.run_series import SeriesHead, TrainedBatch
from tinkex.store.schema import operations
from tinkex.store.usage_sums import Spent, UsageOf

__all__ = ["OperationOutcome", "SeriesChange", "cancel", "encode_head", "finish"]


class OperationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an operation, and its usage. Its effect on the run's series is in `trained` (a
    forward_backward) or `step_metrics` (an optimizer step)."""

    operation: Operation
    result: Result
    num_tokens: int = 0
    num_steps: int = 0
    engine_s: float = 0.0
    trained: TrainedBatch | None = None
    step_metrics: dict[str, float] | None = None
    resumed: SeriesHead | None = None  # of the chain that a load has the run go on

    @property
    def changes_series(self) -> bool:
        """Whether it changes its run's series."""
        is_load = self.operation.kind == "load_weights" and not self.is_failed
        return self.trained is not None or self.step_metrics is not None or is_load

    def series_after(self, head: SeriesHead, now: float) -> SeriesHead:
        """Returns the head of its run's series after it."""
        if self.trained is not None:
            return head.trained(self.trained)
        if self.step_metrics is not None:
            return head.stepped(self.step_metrics, now)
        return head.reset() if self.resumed is None else self.resumed

    @property
    def is_failed(self) -> bool:
        """Whether its result is an error."""
        return self.result.encoding == "error"


class SeriesChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a run's series by operations: a new head, and a point if one was a step."""

    head: SeriesHead
    has_point: bool = False
    is_full: bool = False  # it is time to thin the points


_CLOSING = (
    update(operations)
    .where(operations.c.request_id == bindparam("id"), operations.c.state == "queued")
    .values(state=bindparam("new_state"))
)
_CLOSE, _CLOSE_FOR_GOOD = Prepared(_CLOSING), Prepared(_CLOSING.values(body=null()))
_KEPT_BODY = case((bindparam("keeps_body") == 1, operations.c.body), else_=null())
_CLOSE_ALL = update_rows(_CLOSING.values(body=_KEPT_BODY), "id", "new_state", "keeps_body")

encode_head = msgspec.msgpack.Encoder().encode


def finish(
    conn: Connection,
    outcomes: list[OperationOutcome],
    changes: Mapping[str, SeriesChange] | None = None,
) -> None:
    """Stores the results and closes the operations; one already closed is not changed.

    `changes` are those of the series of the outcomes' runs.
    """
    rows = [(each.operation.request_id, *_closed(each)) for each in outcomes]
    if _CLOSE_ALL.did_all(conn, rows):
        keep_all(conn, [(each.operation, each.result) for each in outcomes])
        closed = outcomes
    else:
        closed = [each for each in outcomes if _close(conn, each)]
        for each in closed:
            keep(conn, each.operation.owner, each.operation.request_id, each.result)
    _record(conn, closed, changes or {})


def cancel(conn: Connection, outcomes: list[OperationOutcome]) -> None:
    """Stores the results of operations that never run, and uses up their numbers."""
    for each in outcomes:
        if _CLOSE_FOR_GOOD.count(conn, id=each.operation.request_id, new_state="refused"):
            keep(conn, each.operation.owner, each.operation.request_id, each.result)


def _close(conn: Connection, outcome: OperationOutcome) -> bool:
    """Closes the operation; returns whether it was open."""
    state, keeps_body = _closed(outcome)
    close = _CLOSE if keeps_body else _CLOSE_FOR_GOOD
    return bool(close.count(conn, id=outcome.operation.request_id, new_state=state))


def _closed(outcome: OperationOutcome) -> tuple[str, bool]:
    """Returns the operation's last state, and whether its body is kept for a replay."""
    keeps_body = outcome.operation.kind in REPLAYED and not outcome.is_failed
    return "failed" if outcome.is_failed else "done", keeps_body


def _record(
    conn: Connection, closed: list[OperationOutcome], changes: Mapping[str, SeriesChange]
) -> None:
    """Adds up the usage of each model, so that each row is updated once, and extends its series.

    Outcomes of one write are closed together or not at all, unless it is a write repeated: then
    none is, and nothing is added twice.
    """
    used: dict[str, models.Used] = {}
    for each in closed:
        so_far = used.setdefault(each.operation.model_id, models.Used())
        so_far.num_tokens += each.num_tokens
        so_far.num_steps += each.num_steps
    made = {model_id: changes[model_id] for model_id in used if model_id in changes}
    for model_id, change in made.items():
        used[model_id].series = encode_head(change.head)
    models.add_usage(conn, used)
    usage_sums.add(conn, ((_usage_of(each.operation), _spent(each)) for each in closed))
    points = {
        model_id: change.head.latest
        for model_id, change in made.items()
        if change.has_point and change.head.latest is not None
    }
    run_points.add(conn, points)
    for model_id, change in made.items():
        if change.is_full:
            run_points.thin(conn, model_id)


def _usage_of(operation: Operation) -> UsageOf:
    return UsageOf(operation.owner, operation.key_id, operation.model_id)


def _spent(outcome: OperationOutcome) -> Spent:
    is_scoring = outcome.operation.kind == "forward"
    return Spent(
        tokens_trained=0 if is_scoring else outcome.num_tokens,
        tokens_scored=outcome.num_tokens if is_scoring else 0,
        engine_s=outcome.engine_s,
    )
