"""What happens inside Tinkex, as events that any code may subscribe to.

```python
from tinkex import telemetry

telemetry.attach("my-app", "tinkex.http.request.stop", lambda event, measured, about, _: ...)
telemetry.attach_logger("INFO")
with telemetry.Metrics() as metrics:
    ...
    print(metrics.snapshot().counters)
```

Handlers run in this process only; nothing here sends anything anywhere. The names of the events
are in `tinkex.telemetry.events`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tinkex.telemetry import events
    from tinkex.telemetry.bus import (
        Bus,
        Handler,
        attach,
        attach_many,
        default_bus,
        detach,
        execute,
        has_handlers,
    )
    from tinkex.telemetry.logger import attach_logger
    from tinkex.telemetry.metrics import Histogram, Metrics, Snapshot
    from tinkex.telemetry.redaction import Secret, mask_secret, redact

_HOMES: Final = {
    "bus": "Bus Handler attach attach_many default_bus detach execute has_handlers",
    "logger": "attach_logger",
    "metrics": "Histogram Metrics Snapshot",
    "redaction": "Secret mask_secret redact",
}


def __getattr__(name: str) -> Any:
    """A public name, fetched at its first use: the command line needs little of this."""
    if name == "events":
        return import_module("tinkex.telemetry.events")
    for home, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(f"tinkex.telemetry.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'tinkex.telemetry' has no attribute {name!r}")


__all__ = [
    "Bus",
    "Handler",
    "Histogram",
    "Metrics",
    "Secret",
    "Snapshot",
    "attach",
    "attach_logger",
    "attach_many",
    "default_bus",
    "detach",
    "events",
    "execute",
    "has_handlers",
    "mask_secret",
    "redact",
]
