"""The engine that is in use now. If it fails it is thrown away and a new one is started."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from tinkex.engine.interface import Engine, EngineError, EngineFailure, EngineUserError, ModelInfo

_logger = logging.getLogger(__name__)


_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0


StateName = Literal["starting", "ready", "not_responding", "restarting"]


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine does now, and since how many seconds.

    `starting` is the first start, `restarting` every other; `not_responding` is an engine that does
    not answer pings and is not given up yet.
    """

    state: StateName
    since_s: float


class Supervisor:
    """Starts engines, and hands out the living one."""

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._factory = factory
        self._engine: Engine | None = None
        self._models: list[ModelInfo] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.generation = 0  # how many engines were started; what an older one held is gone
        self._changed_at = time.monotonic()  # when the engine was last started or lost

    @property
    def is_closed(self) -> bool:
        """Whether no engine is started any more."""
        return self._closing.is_set()

    @property
    def engine(self) -> Engine:
        """The engine, started if there is none; one that does not start is tried again.

        Raises:
            EngineUserError: it is the first one, and its models cannot be read.
            EngineFailure: the server is ending.
        """
        with self._lock:
            if self.is_closed:
                raise _ending()
            if self._engine is None:
                self._engine = self._start()
            return self._engine

    @property
    def current(self) -> Engine | None:
        """The engine if there is one; never starts one."""
        return self._engine

    @property
    def is_down(self) -> bool:
        """Whether the engine is gone, or was never started."""
        engine = self._engine
        return engine is None or engine.is_gone

    def state(self) -> EngineState:
        """What the engine does now; never waits for it."""
        engine, since_s = self._engine, time.monotonic() - self._changed_at
        if engine is None:
            state: StateName = "restarting" if self.generation else "starting"
            return EngineState(state=state, since_s=since_s)
        if engine.is_gone:  # the driver discards it in a moment
            return EngineState(state="restarting", since_s=0.0)
        silent_s = engine.silent_seconds
        if silent_s:
            return EngineState(state="not_responding", since_s=silent_s)
        return EngineState(state="ready", since_s=since_s)

    def busy_seconds(self) -> float:
        """For how many seconds the present engine has computed; 0 while there is none."""
        engine = self._engine
        return 0.0 if engine is None else engine.busy_seconds

    def models(self) -> list[ModelInfo]:
        """The base models, known since the first start."""
        return self._models

    def revive(self) -> None:
        """Replaces an engine that died or hung while it had nothing to do: no work is to blame."""
        if self._engine is not None and self._engine.is_gone:
            self.discard(EngineFailure("It died while it had nothing to do.", code="engine-died"))
        if self._engine is None:
            _ = self.engine

    def discard(self, reason: BaseException) -> None:
        """Gives up the engine; the next use starts another."""
        if not self.is_closed:
            _logger.error("The engine failed and will be restarted: %s", reason)
        self._let_go()

    def close(self) -> None:
        """Closes the engine, also one in the midst of its work, and starts no other."""
        self._closing.set()
        self._let_go()

    def _start(self) -> Engine:
        """A new engine. That one does not start is no request's fault, so none fails by it."""
        wait_s = _FIRST_WAIT_S
        while not self.is_closed:
            try:
                began = time.monotonic()
                engine = self._factory()
                self._models = engine.models()
                self.generation += 1
                took_s = time.monotonic() - began
                _logger.info("Engine ready after %.1f s: %s", took_s, _described(self._models))
                self._changed_at = time.monotonic()
                return engine
            except (EngineError, OSError) as error:
                if isinstance(error, EngineUserError) and not self.generation:
                    raise  # the models are wrong: another try would not help
                _logger.error("The engine does not start; again in %g s: %s", wait_s, error)
            self._closing.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise _ending()

    def _let_go(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        self._changed_at = time.monotonic()
        if engine is not None:
            with contextlib.suppress(Exception):
                engine.close()


def _described(infos: list[ModelInfo]) -> str:
    """Each base once, under its first name."""
    bases: dict[str, str] = {}
    for info in infos:
        size = f"{info.num_parameters / 1e6:,.1f}M parameters, context {info.context_length:,}"
        bases.setdefault(info.path or info.name, f"{info.name} ({size})")
    return "; ".join(bases.values())


def _ending() -> EngineFailure:
    return EngineFailure("The server is ending.", code="server-ending")
