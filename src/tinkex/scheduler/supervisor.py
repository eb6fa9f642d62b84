"""The engine that is in use now. If it fails it is thrown away and a new one is started."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from tinkex.engine.interface import Engine, EngineFailure, ModelInfo

_logger = logging.getLogger(__name__)


class Supervisor:
    """Starts engines, and hands out the living one."""

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._factory = factory
        self._engine: Engine | None = None
        self._models: list[ModelInfo] = []
        self._lock = threading.Lock()
        self.is_closed = False
        self.generation = 0  # how many engines were started; what an older one held is gone

    @property
    def engine(self) -> Engine:
        """The engine, started if there is none.

        Raises:
            EngineFailure: the server is ending.
        """
        with self._lock:
            if self.is_closed:
                raise EngineFailure("The server is ending.", code="server-ending")
            if self._engine is None:
                self._engine = self._factory()
                self._models = self._engine.models()
                self.generation += 1
            return self._engine

    @property
    def current(self) -> Engine | None:
        """The engine if there is one; never starts one."""
        return self._engine

    def models(self) -> list[ModelInfo]:
        """The base models, known since the first start."""
        return self._models

    def discard(self, reason: BaseException) -> None:
        """Gives up the engine; the next use starts another."""
        if not self.is_closed:
            _logger.error("The engine failed and will be restarted: %s", reason)
        self._let_go()

    def close(self) -> None:
        """Closes the engine, also one in the midst of its work, and starts no other."""
        self.is_closed = True
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            with contextlib.suppress(Exception):
                engine.close()
