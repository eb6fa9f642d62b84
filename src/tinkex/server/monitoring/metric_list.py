"""Every metric of a server, declared once: its name, what it counts, and its labels.

The reference page, the dashboard and the alert rules are checked against this list. Labels have few
values, and none identifies a tenant.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["METRICS", "Metric"]


class Metric(NamedTuple):
    """One metric. The name of a counter ends with `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"tinkex_{name}_total", "counter", about, labels)


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"tinkex_{name}", "gauge", about, labels)


def _histogram(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"tinkex_{name}", "histogram", about, labels)


_ALL = [
    # The server
    _gauge("build_info", "Always 1; the label says which version runs.", "version"),
    _gauge("start_time_seconds", "When the server started, in seconds since the epoch."),
    _gauge("ready", "1 once work can run: an engine has started and the server is not stopping."),
    _gauge("disk_low", "1 while new work is refused because the disk is almost full."),
    # HTTP
    _counter("http_requests", "Requests that were answered.", "route", "code"),
    _histogram(
        "http_request_seconds",
        "Time from the first byte of a request to the last of its answer, long polls included.",
        "route",
    ),
    _gauge("http_open_requests", "Requests being answered now, long polls included."),
    _gauge("http_connections", "Connections that are open now."),
    _counter(
        "refusals",
        "Requests answered 429: the server was overloaded, or a tenant was above its limits.",
        "reason",
    ),
    # The queue
    _gauge("queue_operations", "Training operations that wait, by kind.", "kind"),
    _gauge("queue_runs", "Runs that have operations waiting."),
    _gauge("queue_samples", "Sampling requests that wait for an engine."),
    _gauge("queue_tokens", "Tokens of the work that waits: training or sampling.", "work"),
    _gauge("queue_tenants", "Tenants that have unfinished work."),
    _gauge("queue_oldest_seconds", "Age of the oldest work that waits.", "work"),
    _gauge("running_operations", "Training operations being computed now."),
    _gauge("running_samples", "Sampling requests being computed now."),
    _gauge("running_sequences", "Sequences of those requests."),
    # What was done
    _counter(
        "operations", "Training operations that ended: ok, error or cancelled.", "kind", "outcome"
    ),
    _histogram("operation_seconds", "Time from submission to the stored result.", "kind"),
    _counter("samples", "Sampling requests that ended: ok, error or cancelled.", "outcome"),
    _histogram("sample_seconds", "Time from submission to the stored result or cancellation."),
    _histogram("batch_operations", "Operations that one engine call computed together.", "kind"),
    _histogram("batch_tokens", "Tokens that one engine call computed together.", "kind"),
    _histogram("batch_seconds", "Duration of one engine call.", "kind"),
    _counter(
        "tokens",
        "Tokens: trained, scored (forward only), sampled, prompt, and prompt tokens whose "
        "computation was found in the cache (prompt_cached).",
        "use",
    ),
    # Workers
    _gauge("worker_up", "1 if the worker's engine takes work.", "worker"),
    _gauge("worker_draining", "1 while the worker is being drained.", "worker"),
    _gauge("worker_busy_ratio", "Share of the last seconds in which it worked, 0 to 1.", "worker"),
    _counter("worker_busy_seconds", "Seconds its engine has computed since its start.", "worker"),
    _gauge("worker_backlog_seconds", "Expected time of the operations that wait for it.", "worker"),
    _gauge("worker_runs", "Runs that are placed there.", "worker"),
    _gauge("worker_adapters", "Adapters in its memory.", "worker"),
    _gauge("worker_samplers", "Samplers in its memory.", "worker"),
    _gauge("worker_samples", "Sampling requests that run there.", "worker"),
    _counter("worker_restarts", "Engines that were started in place of a lost one.", "worker"),
    _counter("worker_snapshots", "Recovery snapshots of adapters that were taken.", "worker"),
    _counter("worker_replayed_operations", "Operations that were computed again.", "worker"),
    # Memory and disk
    _gauge("memory_bytes", "Resident memory of the server, and of its local engines.", "process"),
    _gauge("disk_free_bytes", "Free space on the data folder's disk."),
    _gauge("disk_total_bytes", "Size of the data folder's disk."),
    _gauge("disk_used_bytes", "Bytes of the checkpoints, samplers and snapshots of all tenants."),
]

METRICS = {metric.name: metric for metric in _ALL}
