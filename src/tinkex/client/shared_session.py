"""What the clients made from one ServiceClient share: one connection, one session.

Both are opened when first needed and only once, however many callers there are; a failed opening is
tried anew by the next call. After a fork the child opens its own, and after a stop the restarted
runtime does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tinkex.client.connection import Connection
from tinkex.client.futures import Future
from tinkex.client.runtime import Runtime
from tinkex.client.session import FinishStatus, Session
from tinkex.config import Config
from tinkex.errors import ClientClosedError

T = TypeVar("T")


class Holder:
    """Opens, shares and closes a connection and a session."""

    def __init__(self, runtime: Runtime, config: Config, display_name: str | None = None) -> None:
        self.runtime = runtime
        self.config = config
        self._display_name = display_name
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._life = self._current_life()
        self._opened: dict[str, Future[Any]] = {}
        self._closing: Future[None] | None = None

    def _current_life(self) -> tuple[int, int]:
        """What an open connection does not outlive: this process, and a stop of its runtime."""
        return os.getpid(), self.runtime.generation

    async def connection(self) -> Connection:
        """The handshaken connection."""
        return await self._once("connection", self._open_connection)

    async def session(self) -> Session:
        """The open session."""
        return await self._once("session", self._open_session)

    def get_session_id(self) -> str:
        """The session's id; opens the session if none is open."""
        return self.submit(self.session()).result().session_id

    async def _open_connection(self) -> Connection:
        return await Connection(self.runtime, self.config).open()

    async def _open_session(self) -> Session:
        connection = await self.connection()
        return await Session.create(connection, display_name=self._display_name)

    def _once(self, name: str, open_: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._life != self._current_life():
                self._reset()
            self.check_open()
            opened = self._opened.get(name)
            if opened is None or (opened.done() and opened.exception() is not None):
                opened = self._opened[name] = self.runtime.submit(open_())
            return opened

    def check_open(self) -> None:
        """Refuses work after `close`."""
        if self._closing is not None:
            raise ClientClosedError("This client has been closed.")

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs an operation of a client that is still open."""
        try:
            self.check_open()
        except ClientClosedError:
            work.close()
            raise
        return self.runtime.submit(work)

    def close(self, status: FinishStatus, detail: str | None) -> Future[None]:
        """Finishes the session, if there is one, and stops all timers; safe to repeat."""
        with self._lock:
            if self._closing is None:
                self._closing = self._begin_closing(status, detail)
            return self._closing

    def _begin_closing(self, status: FinishStatus, detail: str | None) -> Future[None]:
        is_alive = self._life == self._current_life() and self.runtime.is_running
        if not self._opened or not is_alive:
            return Future.resolved(None)
        opened = self._opened.get("session")
        if opened is not None and opened.done() and (session := opened.outcome().value):
            session.refuse_work()
        return self.runtime.submit_last(_close(dict(self._opened), status, detail))


async def _close(opened: dict[str, Future[Any]], status: FinishStatus, detail: str | None) -> None:
    """Closes what was opened; an opening that failed has nothing to close."""
    session = (await opened["session"].outcome_async()).value if "session" in opened else None
    connection = (await opened["connection"].outcome_async()).value
    try:
        if session is not None:
            await session.finish(status, detail)
    finally:
        if connection is not None:
            connection.close()
