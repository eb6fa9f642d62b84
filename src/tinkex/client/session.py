"""A session on a server: opened once, kept alive by heartbeats, finished on close.

Each session has a timer of its own on the runtime's loop, so one slow server never delays the
heartbeat of another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from typing import TYPE_CHECKING, Any, Literal

from tinkex import telemetry
from tinkex.client.connection import Connection
from tinkex.client.reporter import Reporter
from tinkex.client.retry import NO_RETRIES, RetryPolicy
from tinkex.client.transport import Call
from tinkex.errors import ClientClosedError, GoneError, TinkexError
from tinkex.telemetry import events
from tinkex.types.requests import (
    CreateSessionRequest,
    FinishSessionRequest,
    SessionHeartbeatRequest,
)
from tinkex.types.session import (
    ClientSessionFinishErrored,
    ClientSessionFinishInterrupted,
    ClientSessionFinishReason,
    ClientSessionFinishSuccess,
    CreateSessionResponse,
)
from tinkex.version import PROTOCOL_VERSION
from tinkex.wire import json as wire_json

if TYPE_CHECKING:
    from tinkex.client.loss_handle import LossHandle

log = logging.getLogger("tinkex")

FinishStatus = Literal["success", "errored", "interrupted"]
HEARTBEAT_TIMEOUT_S = 10.0
WARN_AFTER_S = 120.0
FINISH_POLICY = RetryPolicy(budget_s=10.0)
"""A server that is gone must not hold up the end of a program for minutes."""

_REASONS: dict[FinishStatus, ClientSessionFinishReason] = {
    "success": ClientSessionFinishSuccess(),
    "errored": ClientSessionFinishErrored(),
    "interrupted": ClientSessionFinishInterrupted(),
}


class Session:
    """One open session, and the counters that number what is made in it."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self.connection = connection
        self.session_id = session_id
        # next() on itertools.count is atomic, so any thread may take a number.
        self.model_seq_ids = itertools.count()
        self.sampler_seq_ids = itertools.count()
        self.loss_seq_ids = itertools.count()
        self.losses: dict[str, asyncio.Task[LossHandle]] = {}
        """Custom losses made, or being made, in this session, by what they do."""
        self._is_finished = False
        self._generation = connection.runtime.generation
        self._heartbeat: asyncio.Task[Any] | None = None
        self._reporter: Reporter | None = None

    @classmethod
    async def create(cls, connection: Connection, *, display_name: str | None = None) -> Session:
        """Opens a session and starts its heartbeat."""
        config = connection.config
        request = CreateSessionRequest(
            tags=list(config.tags),
            user_metadata=dict(config.user_metadata),
            sdk_version=PROTOCOL_VERSION,
            project_id=config.project_id,
            display_name=display_name,
        )
        answer = await connection.post(
            "/create_session", request, CreateSessionResponse, pool="session"
        )
        _show_messages(answer)
        session = cls(connection, answer.session_id).keep_alive()
        if config.telemetry_to_server:
            session._reporter = Reporter(connection, session.session_id).start()
        return session

    def check_open(self) -> None:
        """Refuses work for a session that is over.

        Raises:
            ClientClosedError: it was finished, or its runtime was stopped.
        """
        if self._is_finished:
            raise ClientClosedError("This client's session has been finished.")
        if self._generation != self.connection.runtime.generation:
            raise ClientClosedError(
                "This client's runtime has been stopped, and its session with it."
            )

    def keep_alive(self) -> Session:
        """Starts the heartbeat; only to be called on the loop."""
        self._last_success = self.connection.runtime.clock.monotonic()
        beats = _beat_for_ever(weakref.ref(self), self.connection)
        self._heartbeat = self.connection.runtime.spawn(beats)
        return self

    async def beat(self) -> bool:
        """Sends one heartbeat; returns whether to send more."""
        clock = self.connection.runtime.clock
        try:
            await self._send_beat()
        except GoneError:
            log.info("session %s is finished; its heartbeat ends", self.session_id)
            return False
        except TinkexError as error:
            self._tell_failure(error, clock.monotonic() - self._last_success)
        else:
            self._last_success = clock.monotonic()
        return True

    async def _send_beat(self) -> None:
        request = SessionHeartbeatRequest(session_id=self.session_id)
        call = Call(
            method="POST",
            path="/session_heartbeat",
            pool="session",
            body=(wire_json.encode(request),),
            timeout_s=HEARTBEAT_TIMEOUT_S,
            about={"session_id": self.session_id},
        )
        await self.connection.transport.request(call, NO_RETRIES)

    def _tell_failure(self, error: TinkexError, failing_for_s: float) -> None:
        telemetry.execute(
            events.SESSION_HEARTBEAT_FAILED,
            {"failing_for": failing_for_s},
            {"session_id": self.session_id, "error": error.message},
        )
        if failing_for_s >= WARN_AFTER_S:
            log.warning(
                "session %s: no heartbeat has reached the server for %.0f s: %s",
                self.session_id,
                failing_for_s,
                error.message,
            )

    def refuse_work(self) -> None:
        """Makes every later operation of the session's clients a ClientClosedError."""
        self._is_finished = True

    async def finish(self, status: FinishStatus, detail: str | None) -> None:
        """Ends the heartbeat and reports to the server how the session ended."""
        self.refuse_work()
        self.stop_heartbeat()
        try:
            await self._tell_end(status, detail)
        finally:
            if self._reporter is not None:
                await self._reporter.finish()

    async def _tell_end(self, status: FinishStatus, detail: str | None) -> None:
        request = FinishSessionRequest(reason=_REASONS[status], detail=detail)
        call = Call(
            method="POST",
            path=f"/sessions/{self.session_id}/finish",
            pool="session",
            body=(wire_json.encode(request),),
            about={"session_id": self.session_id},
        )
        await self.connection.transport.request(call, FINISH_POLICY)

    def stop_heartbeat(self) -> None:
        """Ends the heartbeat; only to be called on the loop."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()


async def _beat_for_ever(session: weakref.ref[Session], connection: Connection) -> None:
    """Sends heartbeats as long as the session is referenced; one without references expires."""
    goes_on = True
    while goes_on:
        await connection.runtime.clock.sleep(connection.config.heartbeat_interval_s)
        alive = session()
        goes_on = alive is not None and await alive.beat()
        del alive


def _show_messages(answer: CreateSessionResponse) -> None:
    for level, message in (
        (logging.INFO, answer.info_message),
        (logging.WARNING, answer.warning_message),
        (logging.ERROR, answer.error_message),
    ):
        if message:
            log.log(level, "%s", message)
