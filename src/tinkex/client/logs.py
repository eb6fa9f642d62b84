"""Shows the package's log on stderr if the configuration sets a level."""

from __future__ import annotations

import logging
import threading

_lock = threading.Lock()


class _Shown(logging.StreamHandler):  # type: ignore[type-arg]
    """Our own handler, recognised by its type."""


def show_log(level: str | None) -> None:
    """Prints what the package logs from this level on; does nothing for None, safe to repeat."""
    if level is None:
        return
    logger = logging.getLogger("tinkex")
    with _lock:
        logger.setLevel(level.upper())
        if not any(isinstance(handler, _Shown) for handler in logger.handlers):
            handler = _Shown()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
