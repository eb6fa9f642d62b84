"""Metrics added up from events: counters, gauges, and durations with their percentiles.

Memory is bounded: a fixed number of series, and per histogram the most recent values only. Knows
the bus; knows nothing of where the numbers will be shown. A new metric is a new event in `events`;
metrics of training results come from the engine (`tinkex.engine.training`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from tinkex.telemetry.bus import Bus, default_bus

_DURATIONS: Final = ("duration", "elapsed_time")
_NOT_A_MEASURE: Final = "system_time"
_ids: Final = count(1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution: count, total, min and max of all values, percentiles of the recent ones."""

    count: int
    total: float
    min: float
    max: float
    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metrics at one moment.

    `dropped_updates` counts what was left out because there was no room for another name.
    """

    counters: dict[str, int]
    gauges: dict[str, float]
    histograms: dict[str, Histogram]
    dropped_updates: int


class Metrics:
    """Adds up events while attached.

    Each event counts under its name, and under `<name>.<result>` if its metadata has a `result`;
    `duration` and `elapsed_time` (seconds) go into the histogram of that name; every other number
    becomes the gauge `<name>.<measurement>`.

    >>> bus = Bus()
    >>> with Metrics(bus=bus) as metrics:
    ...     bus.execute("tinkex.http.request.stop", {"duration": 0.5}, {"result": "ok"})
    >>> metrics.snapshot().counters
    {'tinkex.http.request.stop': 1, 'tinkex.http.request.stop.ok': 1}
    >>> metrics.snapshot().histograms["tinkex.http.request.stop"].p95
    0.5
    """

    def __init__(
        self,
        *,
        events: Iterable[str] = ("tinkex.*",),
        bus: Bus | None = None,
        max_series: int = 512,
        max_recent: int = 1024,
    ) -> None:
        self._events = tuple(events)
        self._bus = bus or default_bus()
        self._handler_id = f"tinkex.metrics.{next(_ids)}"
        self._max_series = max_series
        self._max_recent = max_recent
        self._lock = threading.Lock()
        self.reset()

    def __repr__(self) -> str:
        return f"<Metrics of {', '.join(self._events)}>"

    def attach(self) -> Self:
        """Begin to count; attaching twice counts once."""
        self._bus.attach_many(self._handler_id, self._events, self._on_event)
        return self

    def detach(self) -> None:
        """Stop counting; what was counted stays."""
        self._bus.detach(self._handler_id)

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def increment(self, name: str, by: int = 1) -> None:
        """Add to a counter.

        Args:
            name: The metric's name.
            by: How much is added.
        """
        with self._lock:
            if self._has_room(self._counters, name):
                self._counters[name] = self._counters.get(name, 0) + by

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge to its present value.

        Args:
            name: The metric's name.
            value: The value.
        """
        with self._lock:
            if self._has_room(self._gauges, name):
                self._gauges[name] = float(value)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram; one that is not finite is left out.

        Args:
            name: The metric's name.
            value: The value.
        """
        if not math.isfinite(value):
            return
        with self._lock:
            if self._has_room(self._series, name):
                series = self._series.setdefault(name, _Series(self._max_recent))
                series.add(float(value))

    def reset(self) -> None:
        """Forget everything counted so far."""
        with self._lock:
            self._counters: dict[str, int] = {}
            self._gauges: dict[str, float] = {}
            self._series: dict[str, _Series] = {}
            self._dropped = 0

    def snapshot(self) -> Snapshot:
        """All metrics as they stand; a copy that later events do not change."""
        with self._lock:
            return Snapshot(
                counters=dict(self._counters),
                gauges=dict(self._gauges),
                histograms={name: each.summary() for name, each in self._series.items()},
                dropped_updates=self._dropped,
            )

    def _on_event(
        self, event: str, measurements: dict[str, Any], metadata: dict[str, Any], _: Any
    ) -> None:
        self.increment(event)
        if isinstance(result := metadata.get("result"), str):
            self.increment(f"{event}.{result}")
        for name, value in measurements.items():
            if name == _NOT_A_MEASURE or isinstance(value, bool):
                continue
            if not isinstance(value, int | float):
                continue
            if name in _DURATIONS:
                self.observe(event, value)
            else:
                self.gauge(f"{event}.{name}", value)

    def _has_room(self, table: dict[str, Any], name: str) -> bool:
        if name in table:
            return True
        if len(self._counters) + len(self._gauges) + len(self._series) < self._max_series:
            return True
        self._dropped += 1
        return False


class _Series:
    """All values in sum, the recent ones by themselves."""

    __slots__ = ("count", "max", "min", "recent", "total")

    def __init__(self, max_recent: int) -> None:
        self.count = 0
        self.total = 0.0
        self.min = math.inf
        self.max = -math.inf
        self.recent: deque[float] = deque(maxlen=max_recent)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self.recent.append(value)

    def summary(self) -> Histogram:
        ordered = sorted(self.recent)
        return Histogram(
            count=self.count,
            total=self.total,
            min=self.min,
            max=self.max,
            mean=self.total / self.count,
            p50=_percentile(ordered, 50),
            p95=_percentile(ordered, 95),
            p99=_percentile(ordered, 99),
        )


def _percentile(ordered: list[float], percent: int) -> float:
    """The smallest value with at least `percent` of all values at or below it."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]
