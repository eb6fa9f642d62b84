"""The workers of a scheduler as an operator sees them: what each does, and draining one."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from tinkex.engine.interface import ROLES, Engine, EngineUserError, Role
from tinkex.scheduler.shared import SharedParts
from tinkex.scheduler.slot import EngineSlot
from tinkex.scheduler.slot_load import Doing
from tinkex.scheduler.supervisor import StateName

__all__ = ["WaitingWork", "WorkerInfo", "Workers", "worker_name"]

_USABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Names that workers give themselves and that fit into a path and a terminal as they are."""


def worker_name(slot_id: int) -> str:
    """The name of a slot's worker."""
    return f"worker-{slot_id}"


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does: the process of one engine slot."""

    name: str
    worker: str  # its process, and where it is
    host: str
    roles: tuple[Role, ...]
    models: list[str]  # the base models that it holds
    state: StateName
    since_s: float
    is_draining: bool
    num_models: int  # that run there
    num_adapters: int  # of them in memory
    num_samples: int  # that run there
    busy: float  # share of the last seconds
    backlog_s: float  # expected time of the operations that wait for it
    doing: Doing
    busy_s: float  # for how long its engine has computed since it started
    num_restarts: int  # engines that were started here after the first
    num_snapshots: int  # taken here
    num_replayed: int  # operations that were computed again here
    num_samplers: int  # in memory


class WaitingWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that is queued and does not run yet, of all tenants."""

    train_operations: int
    train_tokens: int
    samples: int
    sample_tokens: int


class Workers:
    """All workers, by the number of their slot. Any thread may use it.

    The last `num_remote` slots are for workers from elsewhere; they have one only while it is
    connected.
    """

    def __init__(
        self, slots: Sequence[EngineSlot], shared: SharedParts, *, num_remote: int = 0
    ) -> None:
        self._slots = slots
        self._num_local = len(slots) - num_remote
        self._planner = shared.planner
        self._placement = shared.placement
        self._sample_queue = shared.sample_queue
        self._wakeup = shared.wakeup
        for slot_id in range(self._num_local, len(slots)):
            slots[slot_id].supervisor.on_loss(partial(self._forget_worker, slot_id))
            slots[slot_id].supervisor.on_start(partial(self._adopt_worker, slot_id))

    def list(self) -> list[WorkerInfo]:
        """What each worker does now."""
        return [self._info(slot_id, name) for slot_id, name in self._names().items()]

    def info(self, slot_id: int) -> WorkerInfo:
        """What one worker does now."""
        return self._info(slot_id, self._names().get(slot_id, worker_name(slot_id)))

    def find(self, name: str) -> int | None:
        """The slot of the worker that is listed under this name."""
        return next((slot_id for slot_id, each in self._names().items() if each == name), None)

    def waiting(self) -> WaitingWork:
        """What waits for a worker."""
        with self._wakeup:
            num_operations, train_tokens = self._planner.waiting()
        num_samples, sample_tokens = self._sample_queue.waiting()
        return WaitingWork(
            train_operations=num_operations,
            train_tokens=train_tokens,
            samples=num_samples,
            sample_tokens=sample_tokens,
        )

    def drain(self, slot_id: int) -> None:
        """Moves a worker's models to the others, and gives it neither models nor samples until
        `resume`. Returns at once; `list` shows what it still has.

        Raises:
            EngineUserError: no other worker would be left.
        """
        with self._wakeup:
            if slot_id not in self._present():
                return  # it has just gone, and the next one in its slot is another
            load = self._placement.loads[slot_id]
            for role in load.roles:
                if not any(self._can(each, role) for each in self._present() if each != slot_id):
                    self._refuse_to_drain(slot_id, role)
            load.is_draining = True
            self._apply(slot_id)

    def resume(self, slot_id: int) -> None:
        """Gives a drained worker work again."""
        with self._wakeup:
            self._placement.loads[slot_id].is_draining = False
            self._apply(slot_id)

    def has_role(self, role: Role) -> bool:
        """Whether there is a worker for this kind of work."""
        return any(role in self._placement.loads[each].roles for each in self._present())

    def _adopt_worker(self, slot_id: int, engine: Engine) -> None:
        """Gives the slot the roles of its new worker."""
        with self._wakeup:
            self._placement.loads[slot_id].roles = engine.roles
            self._apply(slot_id)

    def _forget_worker(self, slot_id: int) -> None:
        """Resets what was set for a lost worker: the slot's next one is not draining."""
        with self._wakeup:
            load = self._placement.loads[slot_id]
            load.is_draining, load.roles = False, ROLES
            self._apply(slot_id)

    def _apply(self, slot_id: int) -> None:
        """Opens or closes the slot for models and samples. Called with the lock held."""
        load = self._placement.loads[slot_id]
        if load.should_be_empty:
            for model_id in self._placement.models_of(slot_id):
                if load.may_lose(model_id):  # no engine holds it
                    self._placement.release(model_id, slot_id)
        is_open = not load.is_draining and "sample" in load.roles
        self._sample_queue.set_open(slot_id, is_open=is_open)
        self._wakeup.notify_all()

    def _can(self, slot_id: int, role: Role) -> bool:
        load = self._placement.loads[slot_id]
        return role in load.roles and not load.is_draining

    def _refuse_to_drain(self, slot_id: int, role: Role) -> None:
        name = self._names().get(slot_id, worker_name(slot_id))
        raise EngineUserError(
            f"{name} cannot be drained: no other worker would be left to {role}.",
            code="last-worker",
            field="worker",
            value=name,
        )

    def _present(self) -> Sequence[int]:
        """The slots that have a worker, or are about to have one again."""
        return [
            slot_id
            for slot_id, slot in enumerate(self._slots)
            if slot_id < self._num_local or slot.supervisor.current is not None
        ]

    def _names(self) -> dict[int, str]:
        """Each worker's name: the one it gave itself if that is unique, else its slot's."""
        own = {slot_id: self._slots[slot_id].supervisor.worker_name for slot_id in self._present()}
        counts = Counter(own.values())
        counts.update(worker_name(slot_id) for slot_id in range(len(self._slots)))
        return {
            slot_id: name
            if counts[name] == 1 and _USABLE_NAME.fullmatch(name)
            else worker_name(slot_id)
            for slot_id, name in own.items()
        }

    def _info(self, slot_id: int, name: str) -> WorkerInfo:
        slot, load = self._slots[slot_id], self._placement.loads[slot_id]
        state = slot.supervisor.state()
        model_ids = self._placement.models_of(slot_id)
        with self._wakeup:
            backlog_s = self._planner.backlog_s(model_ids)
        return WorkerInfo(
            name=name,
            worker=slot.supervisor.worker,
            host=slot.supervisor.worker_host or socket.gethostname(),
            roles=load.roles,
            models=[each.name for each in slot.supervisor.models()],
            state=state.state,
            since_s=state.since_s,
            is_draining=load.is_draining,
            num_models=len(model_ids),
            num_adapters=len(slot.adapters.cache),
            num_samples=self._sample_queue.num_running(slot_id),
            busy=load.busy(time.monotonic()),
            backlog_s=backlog_s,
            doing=load.doing(time.monotonic()),
            busy_s=slot.supervisor.busy_seconds(),
            num_restarts=max(0, slot.supervisor.num_starts - 1),
            num_snapshots=slot.adapters.snapshot_writer.num_taken,
            num_replayed=slot.adapters.recovery.num_replayed,
            num_samplers=len(slot.adapters.samplers),
        )
