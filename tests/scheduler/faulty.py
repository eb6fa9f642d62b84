"""A null engine that fails when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinkex.engine.interface import Engine, EngineFailure
from tinkex.engine.null import NullEngine


class Faults:
    """How often each call is to fail, over all engines that are started."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.engines: list[NullEngine] = []
        self.calls: list[str] = []

    def factory(self, **options: Any) -> Callable[[], Engine]:
        """Starts engines that obey these faults."""

        def start() -> Engine:
            self.engines.append(NullEngine(**options))
            return _Faulty(self.engines[-1], self)  # type: ignore[return-value]

        return start


class _Faulty:
    def __init__(self, engine: NullEngine, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        def call(*args: Any) -> Any:
            if self._is_dead:
                raise EngineFailure("dead", code="engine-died")
            self._faults.calls.append(name)
            if self._faults.left.get(name, 0) > 0:
                self._faults.left[name] -= 1
                self._is_dead = name != "close"
                method(*args)  # it died after the work was done, before it was told
                raise EngineFailure("died on the way", code="engine-died")
            return method(*args)

        return call
