"""Parts of monitoring by themselves: what is missing, unknown, or too much."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.driving import null_config
from tests.server.monitoring.test_tracing import Traced
from tinkex.config import process_settings
from tinkex.errors import ConfigError
from tinkex.scheduler.work_counters import WorkCounters
from tinkex.server.monitoring import status, tracing
from tinkex.server.monitoring.monitoring import Monitoring
from tinkex.server.monitoring.process_memory import resident_bytes
from tinkex.server.monitoring.tracing import Tracing
from tinkex.store.results import error_result


def test_traces_without_their_packages_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tinkex.server.monitoring.tracing", None)
    with pytest.raises(ConfigError, match="not installed") as failure:
        Monitoring(null_config(tmp_path, otel_endpoint="http://127.0.0.1:4318"))
    assert failure.value.code == "no-opentelemetry"


def test_the_standard_variable_names_the_receiver() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert process_settings(environ).otel_endpoint == "http://127.0.0.1:4318"
    assert process_settings({}).otel_endpoint is None


def test_without_options_the_application_is_not_wrapped(tmp_path: Path) -> None:
    async def app(*_: object) -> None:
        """Answers nothing."""

    monitoring = Monitoring(null_config(tmp_path))
    assert monitoring.wrap(app, []) is app
    assert monitoring.publish(print) is print  # type: ignore[arg-type, comparison-overlap]
    monitoring.close()


def test_open_traces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_MAX_OPEN", 2)
    traced = Traced()
    for request_id in ("a", "b", "c"):
        traced.request("/api/v1/asample", 200, request_id)
    failed = error_result("x", category="user")
    publish = traced.tracing.published(lambda *_: None)
    publish(dict.fromkeys(("a", "b", "c"), failed), set())
    assert traced.names().count("result") == 2


def test_the_server_says_which_version_its_spans_are_of() -> None:
    exporter = InMemorySpanExporter()
    made = Tracing(SimpleSpanProcessor(exporter))
    made._tracer.start_span("x").end()
    (span,) = exporter.get_finished_spans()
    assert span.resource.attributes["service.name"] == "tinkex"


def test_memory_of_a_process_that_is_gone_is_unknown() -> None:
    assert resident_bytes("none") == 0
    assert resident_bytes() > 10**6


def test_memory_of_the_machine_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (status._machine_bytes() or 0) > 10**8

    def refuse(_: str) -> int:
        raise ValueError("no such name")

    monkeypatch.setattr(os, "sysconf", refuse)
    assert status._machine_bytes() is None


def test_samples_are_counted_by_their_outcome() -> None:
    counters = WorkCounters(clock=lambda: 100.0)
    counters.count_sample("ok", 0.0, {"sampled": 50, "prompt": 7})
    counters.count_sample("cancelled", 0.0)
    assert counters.samples == {"ok": 1, "cancelled": 1}
    assert counters.tokens == {"sampled": 50, "prompt": 7}
    assert counters.tokens_per_s()["sampled"] == 5
