"""The values of all metrics, read from the components' counters at each scrape."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tinkex.scheduler.workers import WorkerInfo
from tinkex.server.gate.overload import Overload
from tinkex.server.http.request_metrics import RequestMetrics
from tinkex.server.monitoring.metric_list import METRICS
from tinkex.server.monitoring.process_memory import engine_bytes, resident_bytes
from tinkex.server.services import Services
from tinkex.store import quotas
from tinkex.telemetry.distribution import Distribution
from tinkex.version import __version__

__all__ = ["MetricValues", "OpenSockets"]


class OpenSockets(Protocol):
    """Open requests and connections of an HTTP server."""

    @property
    def num_open_requests(self) -> int: ...
    @property
    def num_connections(self) -> int: ...


class _Scrape:
    """The families of one scrape; each is in the list of metrics."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds one value of a counter or a gauge."""
        found = self._family(f"tinkex_{name}")
        assert isinstance(found, CounterMetricFamily | GaugeMetricFamily), name
        found.add_metric(labels, value)

    def spread(self, name: str, values: Distribution, *labels: str) -> None:
        """Adds a histogram."""
        found = self._family(f"tinkex_{name}")
        assert isinstance(found, HistogramMetricFamily), name
        buckets = [(_bound_text(bound), float(count)) for bound, count in values.cumulative()]
        found.add_metric(labels, buckets, values.total)

    def _family(self, name: str) -> Family:
        if name not in self.families:
            metric = METRICS[name]
            kinds = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "histogram": HistogramMetricFamily,
            }
            self.families[name] = kinds[metric.kind](name, metric.about, labels=metric.labels)
        return self.families[name]


class MetricValues(Collector):
    """Reads the values. Thread-safe."""

    def __init__(
        self, services: Services, requests: RequestMetrics, overload: Overload, http: OpenSockets
    ) -> None:
        self._services = services
        self._requests = requests
        self._overload = overload
        self._http = http
        self._started_at = time.time() - (time.monotonic() - services.started_at)

    def collect(self) -> Iterator[Family]:
        """All metric families; in a new server some have no values yet."""
        scrape = _Scrape()
        parts: tuple[Callable[[_Scrape], None], ...] = (
            self._server,
            self._http_requests,
            self._queue,
            self._work,
            self._workers,
            self._machine,
        )
        for part in parts:
            part(scrape)
        yield from scrape.families.values()

    def _server(self, scrape: _Scrape) -> None:
        services = self._services
        scrape.add("build_info", 1, __version__)
        scrape.add("start_time_seconds", self._started_at)
        scrape.add("ready", services.scheduler.is_ready() and not services.is_draining)
        scrape.add("disk_low", services.is_disk_low)

    def _http_requests(self, scrape: _Scrape) -> None:
        requests = self._requests
        with requests.lock:
            for (route, code), count in requests.counts.items():
                scrape.add("http_requests_total", count, route, code)
            for route, seconds in requests.seconds.items():
                scrape.spread("http_request_seconds", seconds, route)
        scrape.add("http_open_requests", self._http.num_open_requests)
        scrape.add("http_connections", self._http.num_connections)
        scrape.add("refusals_total", self._overload.num_refused, "overload")
        scrape.add("refusals_total", self._services.admission.num_refused, "tenant_limit")

    def _queue(self, scrape: _Scrape) -> None:
        counts = self._services.scheduler.queue_counts()
        for kind in {"forward_backward", "optim_step", *counts.operations}:
            scrape.add("queue_operations", counts.operations[kind], kind)
        scrape.add("queue_runs", counts.models)
        scrape.add("queue_samples", counts.requests)
        scrape.add("queue_tokens", counts.operation_tokens, "training")
        scrape.add("queue_tokens", counts.request_tokens, "sampling")
        scrape.add("queue_tenants", len(counts.tenants))
        scrape.add("queue_oldest_seconds", counts.oldest_operation_s, "training")
        scrape.add("queue_oldest_seconds", counts.oldest_request_s, "sampling")
        scrape.add("running_operations", counts.running_operations)
        scrape.add("running_samples", counts.running_requests)
        scrape.add("running_sequences", counts.running_sequences)

    def _work(self, scrape: _Scrape) -> None:
        counters = self._services.scheduler.counters
        with counters.lock:
            for (kind, outcome), count in counters.operations.items():
                scrape.add("operations_total", count, kind, outcome)
            for outcome in ("ok", "error", "cancelled"):
                scrape.add("samples_total", counters.samples[outcome], outcome)
            for use in ("trained", "scored", "sampled", "prompt", "prompt_cached"):
                scrape.add("tokens_total", counters.tokens[use], use)
            for name, by_kind in (
                ("operation_seconds", counters.operation_s),
                ("batch_operations", counters.batch_operations),
                ("batch_tokens", counters.batch_tokens),
                ("batch_seconds", counters.batch_s),
            ):
                for kind, values in by_kind.items():
                    scrape.spread(name, values, kind)
            scrape.spread("sample_seconds", counters.sample_s)

    def _workers(self, scrape: _Scrape) -> None:
        for worker in self._services.scheduler.workers.list():
            for name, value in _of_worker(worker).items():
                scrape.add(f"worker_{name}", value, worker.name)

    def _machine(self, scrape: _Scrape) -> None:
        services = self._services
        scrape.add("memory_bytes", resident_bytes(), "server")
        scrape.add("memory_bytes", engine_bytes(), "engines")
        disk = shutil.disk_usage(services.config.data_dir)
        scrape.add("disk_free_bytes", disk.free)
        scrape.add("disk_total_bytes", disk.total)
        scrape.add("disk_used_bytes", services.db.read(quotas.disk_use_of_all))


def _bound_text(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else str(float(bound))


def _of_worker(worker: WorkerInfo) -> dict[str, float]:
    return {
        "up": worker.state == "ready",
        "draining": worker.is_draining,
        "busy_ratio": worker.busy,
        "busy_seconds_total": worker.busy_s,
        "backlog_seconds": worker.backlog_s,
        "runs": worker.num_models,
        "adapters": worker.num_adapters,
        "samplers": worker.num_samplers,
        "samples": worker.num_samples,
        "restarts_total": worker.num_restarts,
        "snapshots_total": worker.num_snapshots,
        "replayed_operations_total": worker.num_replayed,
    }
