"""Where a server's log goes: stderr, a line each with its time, without secrets.

A line is text for people or one JSON object for programs; see `LogFormat`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from tinkex.telemetry.redaction import redact_text

__all__ = ["FIELDS", "LogFormat", "log_to_stderr"]

LogFormat = Literal["text", "json"]

FIELDS = "fields"
"""The attribute of a record with values of its own, which JSON lines have beside the message."""

_TEXT = "%(asctime)s %(levelname)s %(message)s"


class _Redacting(logging.Formatter):
    """Masks whatever looks like a key: the last guard, for texts that others wrote."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


class _JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, the record's own fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        line: dict[str, Any] = {
            "time": f"{when.isoformat(timespec='milliseconds')}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return redact_text(json.dumps(line, ensure_ascii=False, default=str))


def log_to_stderr(verbosity: int, log_format: LogFormat = "text") -> None:
    """Sends the log to stderr: -1 warnings, 0 and 1 events, 2 everything of ours.

    Other packages log warnings and errors only.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting(_TEXT) if log_format == "text" else _JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    level = logging.WARNING if verbosity < 0 else logging.INFO if verbosity < 2 else logging.DEBUG
    logging.getLogger("tinkex").setLevel(level)
