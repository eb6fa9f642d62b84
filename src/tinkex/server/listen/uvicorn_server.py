"""uvicorn that drains as soon as it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

__all__ = ["HttpServer"]


class HttpServer(uvicorn.Server):
    """uvicorn that leaves signals to its process and ends by `drain` alone."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()

    @property
    def num_open_requests(self) -> int:
        """How many requests are being answered, held polls included."""
        return len(self.server_state.tasks)

    @property
    def num_connections(self) -> int:
        """How many connections are open."""
        return len(self.server_state.connections)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none: a server may be stopped before this one serves, too."""
        yield

    def drain(self) -> None:
        """Stops taking connections and ends once the open requests are answered."""
        self.should_exit = True
        with suppress(RuntimeError):  # the loop may have ended already
            self._loop.call_soon_threadsafe(self._on_exit)
