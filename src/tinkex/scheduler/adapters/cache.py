"""Which adapters one engine holds, what of each no snapshot covers, and the eviction order."""

from __future__ import annotations

import time
from collections import OrderedDict

import msgspec

from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import operations
from tinkex.store.operations import Operation

__all__ = ["AdapterCache", "HeldAdapter"]


class HeldAdapter(msgspec.Struct):
    """An adapter in the engine's memory. "Dirty" is work since the last snapshot."""

    seq_id: int  # the last operation that was applied to it
    dirty_s: float = 0.0
    dirty_operations: int = 0
    used_at: float = msgspec.field(default_factory=time.monotonic)
    saving_s: float = 0.0  # how long its last snapshot took
    lacks_sampler: bool = False  # an ephemeral sampler could not be written; a replay writes it


class AdapterCache:
    """The adapters in one engine's memory, least recently used first. One thread uses it."""

    def __init__(self, supervisor: Supervisor, *, max_adapters: int, idle_s: float) -> None:
        self._supervisor = supervisor
        self._max_adapters = max_adapters
        self._idle_s = idle_s
        self._held: OrderedDict[str, HeldAdapter] = OrderedDict()
        self.pinned: set[str] = set()  # adapters of the running batch, which are not evicted
        supervisor.on_loss(self._held.clear)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, model_id: object) -> bool:
        return model_id in self._held

    def __getitem__(self, model_id: str) -> HeldAdapter:
        return self._held[model_id]

    def model_ids(self) -> list[str]:
        """The models whose adapters are held, least recently used first."""
        return list(self._held)

    def dirty(self) -> dict[str, HeldAdapter]:
        """The adapters that changed since their last snapshot."""
        return {each: held for each, held in self._held.items() if held.dirty_operations}

    def register(self, model_id: str, seq_id: int) -> None:
        """Records an adapter that the engine has just created, loaded or replaced."""
        self._held[model_id] = HeldAdapter(seq_id=seq_id)

    def mark_used(self, model_id: str) -> None:
        """Makes the adapter the last to be evicted."""
        self._held.move_to_end(model_id)
        self.touch(model_id)

    def touch(self, model_id: str) -> None:
        """Restarts the time after which the adapter counts as idle."""
        if model_id in self._held:
            self._held[model_id].used_at = time.monotonic()

    def record_applied(self, operation: Operation, seconds: float) -> None:
        """Records that the operation was applied to its adapter, and how long it took."""
        held = self._held.get(operation.model_id)
        if held is not None:
            held.seq_id = max(held.seq_id, operation.seq_id)
            if operation.kind in operations.REPLAYED:
                held.dirty_s += seconds
                held.dirty_operations += 1
            held.used_at = time.monotonic()

    def discard(self, model_id: str) -> None:
        """Forgets an adapter whose state in the engine is no longer valid."""
        self._held.pop(model_id, None)

    def unload(self, model_id: str) -> None:
        """Frees the adapter's memory in the engine, if it is held."""
        if self._held.pop(model_id, None) is not None:
            self._supervisor.engine.unload_adapter(model_id)

    def idle(self) -> str | None:
        """An adapter that was not used for `idle_s`, if there is one."""
        before = time.monotonic() - self._idle_s
        return next((name for name, held in self._held.items() if held.used_at < before), None)

    def evictable(self) -> str | None:
        """The least recently used adapter that is not pinned, if there is one."""
        return next((each for each in self._held if each not in self.pinned), None)

    @property
    def is_over_limit(self) -> bool:
        """Whether more adapters are held than `max_adapters`."""
        return len(self._held) > self._max_adapters
