"""Null engines that fail: when they are told to, or at an input that is poison to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinkex.engine.interface import (
    Engine,
    EngineFailure,
    RequestError,
    SampleResult,
    SamplingProgress,
    TrainRequest,
    TrainResult,
)
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
        self.is_gone = False
        self.silent_seconds = 0.0

    @property
    def busy_seconds(self) -> float:
        return self._engine.busy_seconds

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
                self._engine.close()  # the dead write nothing any more, as a process would not
                raise EngineFailure("died on the way", code="engine-died")
            return method(*args)

        return call


POISON = 113


class Poisonable(NullEngine):
    """Dies at any batch with the token `POISON` in it; samples one token per step."""

    deaths = 0
    death_code = "engine-died"
    steps_needed = 1

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def models(self) -> Any:
        self._check_alive()
        return super().models()

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        self._check_alive()
        if any(POISON in datum.tokens for request in batch for datum in request.data):
            self._die()
        return super().forward_backward(batch)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        self._check_alive()
        waiting = list(self._queue.values())
        if any(POISON in request.tokens for request in waiting):
            self._die()
        self._steps += 1
        if waiting and self._steps % self.steps_needed:
            return SamplingProgress(finished=[], running=len(waiting), waiting=0)
        return super().step_sampling(budget_s)

    def _check_alive(self) -> None:
        if self.is_gone:
            raise EngineFailure("dead", code="engine-died")

    def _die(self) -> None:
        type(self).deaths += 1
        self.is_gone = True
        raise EngineFailure("poisoned", code=self.death_code)


class ShortOfMemory(NullEngine):
    """Answers every sampling request with a failure of its own while a poisonous one is there."""

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        if not any(POISON in request.tokens for request in self._queue.values()):
            return super().step_sampling(budget_s)
        lost = list(self._queue)
        self._queue.clear()
        error = RequestError(message="no memory", code="engine-failure", kind="server")
        results = [SampleResult(request_id=each, error=error) for each in lost]
        return SamplingProgress(finished=results, running=0, waiting=0)


class Hanging(Poisonable):
    """Hangs at its first calls, `hangs_left` in all engines of the class, whatever they hold."""

    death_code = "engine-hung"
    hangs_left = 0

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        self._hang()
        return super().forward_backward(batch)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        if self._queue:
            self._hang()
        return super().step_sampling(budget_s)

    def _hang(self) -> None:
        if type(self).hangs_left > 0:
            type(self).hangs_left -= 1
            self._die()
