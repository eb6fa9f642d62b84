"""Cancels training operations that wait.

A cancelled operation ends with a typed error, and its number counts as used: those behind it do not
wait for it, before and after a restart. What an engine has begun runs to its end. The kinds that
make, save or load a run are never cancelled, since others may name what they make.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tinkex.scheduler.queues.cost_model import FORWARD_KINDS
from tinkex.scheduler.queues.planner import Planner
from tinkex.scheduler.running.outcomes import Publish
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.scheduler.work_counters import WorkCounters
from tinkex.store import Database, operation_outcomes
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import Operation
from tinkex.store.results import error_result

__all__ = ["OperationCancelling"]

_CANCELLED_KINDS = {*FORWARD_KINDS, "optim_step"}

_logger = logging.getLogger(__name__)


class OperationCancelling:
    """Cancels operations of one tenant at a time. Any thread may use it."""

    def __init__(
        self,
        db: Database,
        planner: Planner,
        wakeup: SlotWakeups,
        publish: Publish,
        counters: WorkCounters,
    ) -> None:
        self._db = db
        self._planner = planner
        self._wakeup = wakeup
        self._publish = publish
        self._counters = counters

    def cancel_run(self, owner: str, model_id: str) -> int:
        """How many waiting operations of the owner's run were cancelled."""
        return self._cancel(lambda each: each.owner == owner and each.model_id == model_id)

    def cancel_request(self, owner: str, request_id: str) -> int:
        """1 if the owner's operation waited and was cancelled, else 0."""
        return self._cancel(lambda each: each.owner == owner and each.request_id == request_id)

    def _cancel(self, is_meant: Callable[[Operation], bool]) -> int:
        reason = "The operation was cancelled by its client before it ran."
        result = error_result(reason, category="user", code="cancelled")
        with self._wakeup:  # until the store has it, or an engine could begin what is cancelled
            outcomes = [
                OperationOutcome(operation=each, result=result)
                for each in self._planner.waiting_operations()
                if each.kind in _CANCELLED_KINDS and is_meant(each)
            ]
            if not outcomes:
                return 0
            self._db.write(operation_outcomes.cancel, outcomes)
            for each in outcomes:
                self._planner.remove(each.operation)
            self._wakeup.notify_all()  # operations behind them may run now
        _logger.info("%d waiting operations were cancelled.", len(outcomes))
        self._counters.count_operations(outcomes, "cancelled")
        self._publish({each.operation.request_id: result for each in outcomes}, set())
        return len(outcomes)
