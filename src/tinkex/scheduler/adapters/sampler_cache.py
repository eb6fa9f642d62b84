"""Which samplers one engine has loaded, which requests use them, and the eviction order."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict

from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.supervisor import Supervisor

__all__ = ["SamplerCache"]


class SamplerCache:
    """The samplers in one engine's memory, least recently used first. One thread uses it.

    Every sampler's weights are on disk or on their way there, so any that is unused can be evicted.
    """

    def __init__(
        self, supervisor: Supervisor, evictor: Evictor, *, max_samplers: int, idle_s: float
    ) -> None:
        self._supervisor = supervisor
        self._max_samplers = max_samplers
        self._idle_s = idle_s
        self._used_at: OrderedDict[str, float] = OrderedDict()
        self._num_users: Counter[str] = Counter()
        self._sampler_of: dict[str, str] = {}  # by request id
        evictor.register(self._evict_one)
        supervisor.on_loss(self._clear)

    def __len__(self) -> int:
        return len(self._used_at)

    def __contains__(self, sampler_id: object) -> bool:
        return sampler_id in self._used_at

    def register(self, sampler_id: str) -> None:
        """Records a sampler that the engine has just loaded or copied from an adapter."""
        self._used_at[sampler_id] = time.monotonic()
        while len(self._used_at) > self._max_samplers and self._evict_one():
            pass

    def mark_used(self, sampler_id: str) -> None:
        """Makes the sampler the last to be evicted."""
        self._used_at.move_to_end(sampler_id)
        self._used_at[sampler_id] = time.monotonic()

    def acquire(self, sampler_id: str, request_id: str) -> None:
        """Has the sampler stay until the request is released."""
        self._num_users[sampler_id] += 1
        self._sampler_of[request_id] = sampler_id

    def release(self, request_id: str) -> None:
        """Ends the request's use of its sampler, if it has one."""
        sampler_id = self._sampler_of.pop(request_id, None)
        if sampler_id is not None:
            self._num_users[sampler_id] -= 1
            if sampler_id in self._used_at:
                self._used_at[sampler_id] = time.monotonic()

    def unload(self, sampler_id: str) -> None:
        """Frees the sampler's memory in the engine."""
        self._used_at.pop(sampler_id, None)
        self._supervisor.engine.unload_sampler(sampler_id)

    def idle(self) -> str | None:
        """A sampler that no request used for `idle_s`, if there is one."""
        before = time.monotonic() - self._idle_s
        idle = (each for each, used_at in self._used_at.items() if used_at < before)
        return next((each for each in idle if not self._num_users[each]), None)

    def _evict_one(self) -> bool:
        """Unloads the least recently used sampler without requests; whether there was one."""
        unused = next((each for each in self._used_at if not self._num_users[each]), None)
        if unused is not None:
            self.unload(unused)
        return unused is not None

    def _clear(self) -> None:
        self._used_at.clear()
        self._num_users.clear()
        self._sampler_of.clear()
