"""Events as log lines: one line each, secrets masked.

A light logger for following along, no dashboard. Knows the bus and the standard `logging`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tinkex.errors import ValidationError
from tinkex.telemetry.bus import Bus, default_bus
from tinkex.telemetry.redaction import redact_text

DEFAULT_HANDLER_ID: Final = "tinkex.logger"
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_LONGEST_VALUE: Final = 500


def attach_logger(
    level: int | str = logging.INFO,
    *,
    events: Iterable[str] = ("tinkex.*",),
    logger: logging.Logger | None = None,
    handler_id: str = DEFAULT_HANDLER_ID,
    bus: Bus | None = None,
) -> str:
    """Log one line per event; returns the id with which to `detach` it again.

    ```python
    logging.basicConfig(level="INFO")
    telemetry.attach_logger("INFO")
    # INFO:tinkex.events:tinkex.http.request.stop duration=0.021 method=POST path=/api/v1/...
    ```

    Args:
        level: A level of the standard `logging`, by name or number.
        events: Which events, as in `attach`.
        logger: The logger; by default `tinkex.events`.
        handler_id: The id to detach it by.
        bus: The bus to listen to; by default that of the process.

    Raises:
        ValidationError: `level` is no level of the standard `logging`.
    """
    target = logger or logging.getLogger("tinkex.events")
    number = _level_number(level)

    def log(event: str, measurements: dict[str, Any], metadata: dict[str, Any], _: Any) -> None:
        if target.isEnabledFor(number):
            target.log(number, "%s", format_line(event, measurements, metadata))

    (bus or default_bus()).attach_many(handler_id, events, log)
    return handler_id


def format_line(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """One event as one line of `name=value` pairs.

    >>> format_line("tinkex.x", {"duration": 0.25}, {"path": "/a b", "status": None})
    "tinkex.x duration=0.25 path='/a b'"
    """
    pairs = [*measurements.items(), *metadata.items()]
    shown = [f"{name}={_shown(value)}" for name, value in pairs if value is not None]
    return redact_text(" ".join([event, *shown]))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > _LONGEST_VALUE:
        # Masked before it is cut: half a key is still half a secret.
        text = redact_text(text)[:_LONGEST_VALUE] + "…"
    is_plain = text.isprintable() and text and not any(mark in text for mark in " ='\"")
    return text if is_plain else repr(text)


def _level_number(level: int | str) -> int:
    if isinstance(level, int):
        return level
    if level.lower() not in _LEVELS:
        raise ValidationError(
            f"level={level!r} is not a log level.", hint=f"Use one of {', '.join(_LEVELS)}."
        )
    return int(getattr(logging, level.upper()))
