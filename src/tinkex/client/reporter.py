"""Sending events of a session to its server, only where the configuration says so.

Off by default. What is sent: the beginning and end of the session and the events of the package's
own bus that belong to it, already redacted; never headers, bodies, tracebacks or paths. A batch the
server does not take is tried a few times and then dropped: reporting must never hold anything up.
"""

from __future__ import annotations

import asyncio
import platform
import uuid
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tinkex import telemetry
from tinkex.client.connection import Connection
from tinkex.client.retry import RetryPolicy
from tinkex.errors import TinkexError
from tinkex.telemetry import events
from tinkex.types.telemetry import (
    GenericEvent,
    SessionEndEvent,
    SessionStartEvent,
    Severity,
    TelemetryEvent,
    TelemetryResponse,
    TelemetrySendRequest,
)
from tinkex.version import PROTOCOL_VERSION

FLUSH_EVERY_S = 10.0
MAX_WAITING = 10_000
MAX_BATCH = 100
TIMEOUT_S = 5.0
POLICY = RetryPolicy(max_retries=3)
# Reporting the requests of reports would cause further reports without end.
_NOT_REPORTED = (
    events.HTTP_REQUEST_START,
    events.HTTP_REQUEST_STOP,
    events.HTTP_REQUEST_EXCEPTION,
    events.RETRY_ATTEMPT_START,
    events.RETRY_ATTEMPT_STOP,
    events.RETRY_ATTEMPT_RETRY,
    events.RETRY_ATTEMPT_FAILED,
)
REPORTED = tuple(name for name in events.ALL if name not in _NOT_REPORTED)


class Reporter:
    """Collects the events of one session and sends them now and then."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self._connection = connection
        self._session_id = session_id
        self._waiting: deque[TelemetryEvent] = deque(maxlen=MAX_WAITING)
        self._index = 0
        self._process = str(uuid.uuid4())
        self._handler_id = f"tinkex-reporter-{session_id}-{self._process}"
        self._started = connection.runtime.clock.monotonic()
        self._timer: asyncio.Task[Any] | None = None

    def start(self) -> Reporter:
        """Begins to listen; only to be called on the loop."""
        telemetry.attach_many(self._handler_id, REPORTED, self._on_event)
        self._waiting.append(SessionStartEvent(**self._common("INFO")))
        self._timer = self._connection.runtime.spawn(self._flush_for_ever())
        return self

    async def finish(self) -> None:
        """Stops listening and sends what is left."""
        telemetry.detach(self._handler_id)
        if self._timer is not None:
            self._timer.cancel()
        lasted = timedelta(seconds=self._connection.runtime.clock.monotonic() - self._started)
        self._waiting.append(SessionEndEvent(duration=str(lasted), **self._common("INFO")))
        await self.flush()

    def _on_event(
        self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any], config: Any
    ) -> None:
        if metadata.get("session_id", self._session_id) != self._session_id:
            return
        data = {**measurements, **metadata}
        self._waiting.append(
            GenericEvent(event_name=event, event_data=data, **self._common("WARNING"))
        )

    def _common(self, severity: Severity) -> dict[str, Any]:
        self._index += 1
        return {
            "event_id": str(uuid.uuid4()),
            "event_session_index": self._index - 1,
            "severity": severity,
            "timestamp": datetime.fromtimestamp(self._connection.runtime.clock.time(), UTC),
        }

    async def _flush_for_ever(self) -> None:
        try:
            while True:
                await self._connection.runtime.clock.sleep(FLUSH_EVERY_S)
                await self.flush()
        finally:
            # A runtime that is stopped cancels this task; nothing is reported after that.
            telemetry.detach(self._handler_id)

    async def flush(self) -> None:
        """Sends everything that waits; what the server does not take is dropped."""
        while self._waiting:
            size = min(MAX_BATCH, len(self._waiting))
            request = TelemetrySendRequest(
                events=[self._waiting.popleft() for _ in range(size)],
                platform=platform.system(),
                sdk_version=PROTOCOL_VERSION,
                session_id=self._session_id,
                process_uuid=self._process,
            )
            try:
                await self._connection.post(
                    "/telemetry",
                    request,
                    TelemetryResponse,
                    pool="telemetry",
                    policy=POLICY,
                    timeout_s=TIMEOUT_S,
                )
            except TinkexError:
                return
