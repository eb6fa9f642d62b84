"""What happens inside Tinkex, as events that anybody may listen to.

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
from tinkex.telemetry.redact import Secret, mask_secret, redact

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
