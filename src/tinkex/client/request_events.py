"""Telling telemetry of a logical request: once at its start, once at its end.

A logical request may be many HTTP exchanges (retries, the polls of one future); listeners hear of
it once. Costs next to nothing while there is no listener.
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


def tell_attempt(event: str, attempt: int, **details: Any) -> None:
    """Emits a retry event; `delay_ms` and `duration` are measurements, the rest is metadata."""
    if telemetry.has_handlers(event):
        measured: dict[str, Any] = {}
        for key in ("delay_ms", "duration"):
            if key in details:
                measured[key] = details.pop(key)
        telemetry.execute(event, measured, {"attempt": attempt, **details})
