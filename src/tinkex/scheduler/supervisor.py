"""The engine that is in use now. If it fails it is thrown away and a new one is started."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from tinkex.engine.interface import Engine, EngineError, EngineFailure, EngineUserError, ModelInfo

_logger = logging.getLogger(__name__)


_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0


class Supervisor:
    """Starts engines, and hands out the living one."""

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._factory = factory
        self._engine: Engine | None = None
        self._models: list[ModelInfo] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.generation = 0  # how many engines were started; what an older one held is gone

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

    def engine_s(self) -> float:
        """The time for which the engine that is in use now has worked; 0 if it cannot say."""
        return getattr(self._engine, "worked_s", 0.0)

    def models(self) -> list[ModelInfo]:
        """The base models, known since the first start."""
        return self._models

    def notice_death(self) -> None:
        """Lets go of an engine that died while it had nothing to do: nobody's work is to blame."""
        if getattr(self._engine, "is_gone", False):
            self.discard(EngineFailure("It died while it had nothing to do.", code="engine-died"))

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
                engine = self._factory()
                self._models = engine.models()
                self.generation += 1
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
        if engine is not None:
            with contextlib.suppress(Exception):
                engine.close()


def _ending() -> EngineFailure:
    return EngineFailure("The server is ending.", code="server-ending")
