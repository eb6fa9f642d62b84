"""Telemetry events of a logical request: one at its start, one at its end.

A logical request may be many HTTP exchanges (retries, the polls of one future); listeners get one
pair of events for it, and events for each attempt. Costs little while there is no listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tinkex import telemetry
from tinkex.client.clock import Clock
from tinkex.errors import APIStatusError, TinkexError
from tinkex.telemetry import events

_REQUEST_EVENTS = (
    events.HTTP_REQUEST_START,
    events.HTTP_REQUEST_STOP,
    events.HTTP_REQUEST_EXCEPTION,
)


class Observation:
    """What a logical request learns on its way, for its one closing event."""

    __slots__ = ("retry_count", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.retry_count = 0


def is_observed() -> bool:
    """Whether there is a listener for requests; without one nothing is gathered."""
    return any(map(telemetry.has_handlers, _REQUEST_EVENTS))


@asynccontextmanager
async def observed(clock: Clock, about: dict[str, Any]) -> AsyncIterator[Observation]:
    """Emits start, and then stop or exception, around the block."""
    observation = Observation()
    telemetry.execute(events.HTTP_REQUEST_START, {"system_time": clock.time()}, about)
    started = clock.monotonic()
    try:
        yield observation
    except APIStatusError as error:
        observation.status = error.status
        _tell_stop(observation, about, clock.monotonic() - started, "error")
        raise
    except (TinkexError, asyncio.CancelledError) as error:
        telemetry.execute(
            events.HTTP_REQUEST_EXCEPTION,
            {"duration": clock.monotonic() - started},
            {**about, "kind": type(error).__name__, "reason": str(error)},
        )
        raise
    _tell_stop(observation, about, clock.monotonic() - started, "ok")


def _tell_stop(
    observation: Observation, about: dict[str, Any], duration: float, result: str
) -> None:
    telemetry.execute(
        events.HTTP_REQUEST_STOP,
        {"duration": duration},
        {
            **about,
            "result": result,
            "status": observation.status,
            "retry_count": observation.retry_count,
        },
    )


class Attempts:
    """The attempts of one piece of work, each begun and then stopped, retried or failed.

    `work` says which: the path of a request, or "sample" for a whole sample that is retried. A
    wait for a result is one attempt for as long as its polls are answered.
    """

    __slots__ = ("_clock", "_number", "_started", "_work")

    def __init__(self, clock: Clock, work: str) -> None:
        self._clock = clock
        self._work = work
        self._number = -1
        self._started = 0.0

    def begin(self) -> None:
        """The first attempt begins, or the next after a retry was announced."""
        self._number += 1
        self._started = self._clock.monotonic()
        if telemetry.has_handlers(events.RETRY_ATTEMPT_START):
            self._tell(events.RETRY_ATTEMPT_START, {"system_time": self._clock.time()})

    def stop(self) -> None:
        """The attempt went well."""
        if telemetry.has_handlers(events.RETRY_ATTEMPT_STOP):
            self._tell(events.RETRY_ATTEMPT_STOP, self._duration())

    def retry(self, error: TinkexError, delay_s: float) -> None:
        """The attempt did not go well; there will be another one after a wait."""
        if telemetry.has_handlers(events.RETRY_ATTEMPT_RETRY):
            measured = {**self._duration(), "delay_ms": delay_s * 1000}
            self._tell(events.RETRY_ATTEMPT_RETRY, measured, error=error.message)

    def fail(self, error: TinkexError) -> None:
        """The attempt did not go well and was the last one."""
        if telemetry.has_handlers(events.RETRY_ATTEMPT_FAILED):
            self._tell(events.RETRY_ATTEMPT_FAILED, self._duration(), error=error.message)

    def _duration(self) -> dict[str, float]:
        return {"duration": self._clock.monotonic() - self._started}

    def _tell(self, event: str, measured: dict[str, float], **about: str) -> None:
        telemetry.execute(event, measured, {"attempt": self._number, "work": self._work, **about})
