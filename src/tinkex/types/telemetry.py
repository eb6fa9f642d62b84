"""The events a client may report about itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tinkex.types._fields import sent
from tinkex.types._model import AnswerModel, ProtocolModel

EventType = Literal["SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"]
Severity = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class SessionStartEvent(AnswerModel, frozen=True, kw_only=True):
    """A session began."""

    event: Literal["SESSION_START"] = "SESSION_START"
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime


class SessionEndEvent(AnswerModel, frozen=True, kw_only=True):
    """A session ended; `duration` is written like "0:00:00.023545"."""

    duration: str
    event: Literal["SESSION_END"] = "SESSION_END"
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime


class UnhandledExceptionEvent(AnswerModel, frozen=True, kw_only=True, omit_defaults=True):
    """An exception reached the user."""

    error_message: str
    error_type: str
    event: Literal["UNHANDLED_EXCEPTION"] = sent("UNHANDLED_EXCEPTION")
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    traceback: str | None = None


class GenericEvent(AnswerModel, frozen=True, kw_only=True):
    """Anything else, by name."""

    event: Literal["GENERIC_EVENT"] = "GENERIC_EVENT"
    event_id: str
    event_name: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    event_data: dict[str, Any] = {}


TelemetryEvent = SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent


class TelemetrySendRequest(ProtocolModel, frozen=True, kw_only=True):
    """A batch of events."""

    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


TelemetryBatch = TelemetrySendRequest


class TelemetryResponse(AnswerModel, frozen=True, kw_only=True):
    """The server accepted the batch."""

    status: Literal["accepted"] = "accepted"
