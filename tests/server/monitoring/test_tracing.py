"""Spans from the client's call through the server's queue, engine and result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import Message, Receive, Scope, Send

from tests.server.driving import Http, null_config
from tinkex.scheduler.work_counters import EngineBatch
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.monitoring.tracing import Tracing
from tinkex.store.operations import Operation
from tinkex.store.results import Result, error_result

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CLIENT = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
if sys.argv[1] == "configured":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
import tinkex
from tinkex import types

with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model="null", rank=4)
    datum = types.Datum(
        types.ModelInput.from_ints([117, 2]), {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    )
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams()).result()
    assert training.forward_backward([datum], "no such loss").outcome().error is not None
    sampler = training.save_weights_and_get_sampling_client()
    sampler.sample(
        types.ModelInput.from_ints([118]), 1, types.SamplingParams(max_tokens=2)
    ).result()
    prompt, params = types.ModelInput.from_ints([119]), types.SamplingParams(max_tokens=3)
    with sampler.sample(prompt, 1, params, stream=True) as stream:
        assert sum(len(delta.tokens) for delta in stream) == 3
    training.save_state("one").result()
for span in exporter.get_finished_spans():
    context = span.get_span_context()
    print(f"{context.trace_id:032x}", f"{context.span_id:016x}", span.name, span.status.status_code)
    assert not any("tml-" in str(value) for value in span.attributes.values())
"""


class Receiver:
    """An OTLP/HTTP receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def test_spans_go_from_the_client_s_call_to_the_stored_result(
    receiver: Receiver, tmp_path: Path
) -> None:
    config = null_config(tmp_path, otel_endpoint=receiver.url)
    with EmbeddedServer(config) as server:
        ran = run_client(server, "configured")
        with httpx.Client(base_url=server.base_url, timeout=30) as client:
            http = Http(client, server.api_key)
            model = http.model()
            headers = {"traceparent": TRACEPARENT, "X-API-Key": server.api_key}
            step = {"model_id": model, "seq_id": 1, "adam_params": {}}
            answer = client.post("/api/v1/optim_step", json=step, headers=headers).json()
            http.result(answer["request_id"])
        key = server.api_key
        server.stop()  # which sends the last spans
    lines = [line.split() for line in ran.splitlines()]
    calls = {line[2]: line for line in lines if line[3] == "StatusCode.UNSET"}
    forward = calls["TrainingClient.forward_backward"]
    names = ["submit forward_backward", "queue", "engine", "result"]
    ours = [each for each in receiver.spans if each.trace_id.hex() == forward[0]]
    assert sorted(each.name for each in ours) == sorted(names)
    submit = next(each for each in ours if each.name.startswith("submit"))
    assert submit.parent_span_id.hex() == forward[1]
    assert {each.parent_span_id for each in ours if each is not submit} == {submit.span_id}
    by_name = {each.name: each for each in ours}
    assert by_name["queue"].end_time_unix_nano == by_name["engine"].start_time_unix_nano
    assert by_name["engine"].end_time_unix_nano == by_name["result"].start_time_unix_nano
    samples = [line[0] for line in lines if line[2] == "SamplingClient.sample"]
    assert len(samples) == 2, "one at once, one streamed"
    for trace_id in samples:
        sampled = [each.name for each in receiver.spans if each.trace_id.hex() == trace_id]
        assert sorted(sampled) == sorted(["submit asample", "queue", "engine", "result"])
    assert "TrainingClient.save_state" in calls, "not the base class that it is from"
    by_hand = [each for each in receiver.spans if each.trace_id.hex() == TRACE]
    assert {each.name for each in by_hand} == {"submit optim_step", "queue", "engine", "result"}
    assert PARENT in {each.parent_span_id.hex() for each in by_hand}
    for body in receiver.bodies:
        assert key.encode() not in body
        assert b"tml-" not in body


def run_client(server: EmbeddedServer, mode: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, mode],
        env={"TINKER_BASE_URL": server.base_url, "TINKER_API_KEY": server.api_key},
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_client_without_a_provider_makes_no_spans(server: EmbeddedServer) -> None:
    assert run_client(server, "not configured") == ""


def test_a_failed_call_and_a_failed_result_are_marked(server: EmbeddedServer) -> None:
    lines = [line.split() for line in run_client(server, "configured").splitlines()]
    codes = [line[3] for line in lines if line[2] == "TrainingClient.forward_backward"]
    assert sorted(codes) == ["StatusCode.ERROR", "StatusCode.UNSET"]


def test_opentelemetry_and_prometheus_are_imported_only_if_enabled() -> None:
    code = (
        "import sys, tinkex, tinkex.client.training, tinkex.client.sampling, tinkex.server.process;"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "[]", ran.stderr


class Traced:
    """`Tracing` with its spans at hand."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter))

    def names(self) -> list[str]:
        return [each.name for each in self.exporter.get_finished_spans()]

    def request(self, path: str, status: int, request_id: str = "") -> None:
        """One request; its handler submits work if it has an id."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if request_id:
                self.tracing.submitted(request_id, "optim_step")
            await send({"type": "http.response.start", "status": status})

        async def run() -> None:
            scope = {"type": "http", "path": path, "method": "POST", "headers": []}
            await self.tracing.around(app)(scope, nothing, ignored)

        asyncio.run(run())


async def nothing() -> Message:
    return {"type": "http.disconnect"}


async def ignored(message: Message) -> None:
    """Drops a message."""


def operation(request_id: str) -> Operation:
    return Operation(
        request_id=request_id,
        owner="o",
        model_id="m",
        seq_id=1,
        kind="optim_step",
        cost=1,
        state="queued",
        created_at=0.0,
    )


def test_only_submissions_have_spans_and_failures_are_marked() -> None:
    traced = Traced()
    traced.request("/api/v1/retrieve_future", 200)
    assert traced.names() == []
    traced.request("/api/v1/optim_step", 503)
    (span,) = traced.exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 503
    assert span.status.status_code.name == "ERROR"


def test_a_result_ends_its_trace_and_unknown_ones_are_passed_on() -> None:
    traced = Traced()
    published: list[str] = []
    publish = traced.tracing.published(lambda results, _: published.extend(results))
    traced.request("/api/v1/optim_step", 200, "a")
    traced.tracing.batch_done(EngineBatch([operation("a"), operation("b")], 1.0, 2.0))
    failed = error_result("It failed.", category="server")
    publish({"a": failed, "b": Result(encoding="json", body=b"{}")}, set())
    assert published == ["a", "b"]
    assert traced.names() == ["submit optim_step", "queue", "engine", "result"]
    assert traced.exporter.get_finished_spans()[-1].status.status_code.name == "ERROR"
    publish({"a": failed}, set())
    assert len(traced.names()) == 4
    traced.tracing.close()


def test_a_request_that_is_cancelled_while_it_waits_has_no_engine_span() -> None:
    traced = Traced()
    traced.request("/api/v1/asample", 200, "s")
    traced.tracing.published(lambda *_: None)({"s": error_result("x", category="user")}, set())
    assert traced.names() == ["submit asample", "result"]


def test_what_is_submitted_outside_of_a_span_is_not_traced() -> None:
    traced = Traced()
    traced.tracing.submitted("x", "sample")
    traced.tracing.sample_done("x", 1.0, 2.0)
    assert traced.names() == []
