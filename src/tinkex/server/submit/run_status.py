"""What runs do now: running, waiting and why, idle, or over."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tinkex.scheduler.queues.planner import Activity
from tinkex.server.services import Services
from tinkex.server.submit.queue_state import queue_state
from tinkex.store.models import Model
from tinkex.types.runs import TrainingRunStatus

__all__ = ["SETTLED_AFTER_S", "statuses"]

SETTLED_AFTER_S = 5.0
"""A run is running for so long after an operation of it ran: its next one is on its way."""

_OVER = {
    "failed": "It could not be created.",
    "unloaded": "It was unloaded.",
    "imported": "It holds copied weights.",
    "ended": "Its session ended, and its training state is no longer kept.",
}


def statuses(services: Services, models: Sequence[Model]) -> dict[str, TrainingRunStatus]:
    """The status of each of these runs, by its id."""
    activities = services.scheduler.activities([each.model_id for each in models])
    return {
        each.model_id: _status(services, each, activities.get(each.model_id)) for each in models
    }


def _status(services: Services, model: Model, activity: Activity | None) -> TrainingRunStatus:
    if model.state in _OVER:
        return TrainingRunStatus(state="ended", reason=_OVER[model.state])
    if activity is None:
        is_recent = time.time() - model.last_request_at < SETTLED_AFTER_S
        return TrainingRunStatus(state="running" if is_recent else "idle")
    if activity.num_running or time.monotonic() - activity.ran_at < SETTLED_AFTER_S:
        return TrainingRunStatus(state="running")
    if activity.num_waiting:
        return TrainingRunStatus(state="waiting", reason=_reason(services, model, activity))
    return TrainingRunStatus(state="idle")


def _reason(services: Services, model: Model, activity: Activity) -> str:
    _, reason = queue_state(services, model.owner, "forward_backward", "")
    if reason is not None:
        return reason
    if activity.missing_seq is not None:
        return f"The request with seq_id={activity.missing_seq} has not come."
    return f"The engine works on other runs; {activity.num_waiting} operations wait."
