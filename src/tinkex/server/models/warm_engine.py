"""An engine that loads its models while its server stands by, so that a takeover need not wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tinkex.engine.interface import Engine, EngineUserError

__all__ = ["WarmEngine"]

_logger = logging.getLogger(__name__)


class WarmEngine:
    """Starts engines as `factory` does; `prepare` begins the first one before it is needed.

    An engine that could not be prepared, or has died since, is started when it is needed.
    """

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._factory = factory
        self._prepared: Future[Engine] | None = None

    def prepare(self) -> None:
        """Begins to start an engine, in a thread of its own."""
        self._prepared = Future()
        thread = threading.Thread(
            target=self._start, args=(self._prepared,), name="tinkex-warm-engine", daemon=True
        )
        thread.start()

    @property
    def fatal(self) -> EngineUserError | None:
        """Why no engine can ever start, if that is known."""
        if self._prepared is None or not self._prepared.done():
            return None
        error = self._prepared.exception()
        return error if isinstance(error, EngineUserError) else None

    def __call__(self) -> Engine:
        """The prepared engine the first time, a new one after that."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.exception() is None:
            engine = prepared.result()
            if not engine.is_gone:
                return engine
            engine.close()
        return self._factory()

    def close(self) -> None:
        """Ends the prepared engine if it was not used."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.add_done_callback(_close_started)

    def _start(self, prepared: Future[Engine]) -> None:
        try:
            prepared.set_result(self._factory())
        except Exception as error:
            _logger.warning("The engine of this standby did not start: %s", error)
            prepared.set_exception(error)


def _close_started(prepared: Future[Engine]) -> None:
    if prepared.exception() is None:
        prepared.result().close()
