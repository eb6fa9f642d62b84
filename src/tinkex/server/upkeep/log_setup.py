"""Where a server's log goes: stderr, a line each with its time, without secrets."""

from __future__ import annotations

import logging

from tinkex.telemetry.redaction import redact_text

__all__ = ["log_to_stderr"]

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Redacting(logging.Formatter):
    """Masks whatever looks like a key: the last guard, for texts that others wrote."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


def log_to_stderr(verbosity: int) -> None:
    """Sends the log to stderr: -1 warnings, 0 and 1 events, 2 everything of ours.

    Other packages are heard from warnings on.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    level = logging.WARNING if verbosity < 0 else logging.INFO if verbosity < 2 else logging.DEBUG
    logging.getLogger("tinkex").setLevel(level)
