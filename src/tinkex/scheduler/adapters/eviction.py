"""Eviction: when an adapter or sampler does not fit into the engine, idle ones are unloaded.

Which adapter goes, and when an idle one goes without need, is in `cache`; `snapshots.evict` takes
the snapshot first. Samplers are in `sampler_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tinkex.engine.interface import EngineUserError

T = TypeVar("T")


class Evictor:
    """The caches that can unload something, in the order they are tried. One thread uses it."""

    def __init__(self) -> None:
        self._caches: list[Callable[[], bool]] = []

    def register(self, evict_one: Callable[[], bool]) -> None:
        """Adds a cache: `evict_one` unloads one idle entry and returns whether there was one."""
        self._caches.append(evict_one)

    def load_with_eviction(self, load: Callable[[], T]) -> T:
        """What `load` returns; retried after each eviction while the engine is full.

        Raises:
            EngineUserError: the engine is full of what is in use, or refused for another reason.
        """
        while True:
            try:
                return load()
            except EngineUserError as error:
                if error.code != "engine-full" or not any(evict() for evict in self._caches):
                    raise
