"""The workers of a scheduler as an operator sees them: what each does, and draining one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from tinkex.engine.interface import EngineUserError
from tinkex.scheduler.shared import SharedParts
from tinkex.scheduler.slot import EngineSlot
from tinkex.scheduler.supervisor import StateName

__all__ = ["WorkerInfo", "Workers", "worker_name"]


def worker_name(slot_id: int) -> str:
    """The name of a slot's worker."""
    return f"worker-{slot_id}"


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does: the process of one engine slot."""

    name: str
    worker: str  # its process, and where it is
    state: StateName
    since_s: float
    is_draining: bool
    num_models: int  # that run there
    num_adapters: int  # of them in memory
    num_samples: int  # that run there
    busy: float  # share of the last seconds
    backlog_s: float  # expected time of the operations that wait for it


class Workers:
    """All workers, by the number of their slot. Any thread may use it."""

    def __init__(self, slots: Sequence[EngineSlot], shared: SharedParts) -> None:
        self._slots = slots
        self._planner = shared.planner
        self._placement = shared.placement
        self._sample_queue = shared.sample_queue
        self._wakeup = shared.wakeup

    def list(self) -> list[WorkerInfo]:
        """What each worker does now."""
        return [self._info(slot_id, slot) for slot_id, slot in enumerate(self._slots)]

    def drain(self, slot_id: int) -> None:
        """Has a worker give its models to the others, and take neither models nor samples until
        `resume`. Returns at once; `list` says what it still has.

        Raises:
            EngineUserError: no other worker would be left.
        """
        with self._wakeup:
            loads = self._placement.loads
            if all(load.is_draining for n, load in enumerate(loads) if n != slot_id):
                raise EngineUserError(
                    f"{worker_name(slot_id)} cannot be drained: no other worker would be left to "
                    "take its models. Start the server with more workers, or resume another.",
                    code="last-worker",
                    field="worker",
                    value=worker_name(slot_id),
                )
            loads[slot_id].is_draining = True
            for model_id in self._placement.models_of(slot_id):
                if loads[slot_id].may_lose(model_id):  # its engine could not give it away
                    self._placement.release(model_id, slot_id)
            self._sample_queue.set_open(slot_id, is_open=False)
            self._wakeup.notify_all()

    def resume(self, slot_id: int) -> None:
        """Has a worker that was drained take work again."""
        with self._wakeup:
            self._placement.loads[slot_id].is_draining = False
            self._sample_queue.set_open(slot_id, is_open=True)
            self._wakeup.notify_all()

    def _info(self, slot_id: int, slot: EngineSlot) -> WorkerInfo:
        state, load = slot.supervisor.state(), self._placement.loads[slot_id]
        model_ids = self._placement.models_of(slot_id)
        with self._wakeup:
            backlog_s = self._planner.backlog_s(model_ids)
        return WorkerInfo(
            name=worker_name(slot_id),
            worker=slot.supervisor.worker,
            state=state.state,
            since_s=state.since_s,
            is_draining=load.is_draining,
            num_models=len(model_ids),
            num_adapters=len(slot.adapters.cache),
            num_samples=self._sample_queue.num_running(slot_id),
            busy=load.busy(time.monotonic()),
            backlog_s=backlog_s,
        )
