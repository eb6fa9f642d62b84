"""OpenTelemetry spans of a server: each submission, its wait, its engine time, and its result.

    submit   the request, as a child of the client's span if it sent a `traceparent`
    queue    from the answer to the submission to the start of the engine's call
    engine   that call
    result   from the end of the call until the result is stored and published

The links are in memory only, so work that was logged before a restart runs without spans.
Attributes are the kind of work, ids and sizes; never a prompt, a key or a tenant. Needs
`tinkex[otel]`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.scheduler.running.outcomes import Publish
from tinkex.scheduler.work_counters import EngineBatch
from tinkex.server.http.headers import header
from tinkex.store.results import Result
from tinkex.version import __version__

__all__ = ["Tracing", "exporting_to"]

_MAX_OPEN = 50_000
_TRACED = frozenset(
    f"/api/v1/{name}"
    for name in (
        *("forward_backward", "forward", "optim_step", "asample", "create_model"),
        *("save_weights", "save_weights_for_sampler", "load_weights"),
    )
)


def exporting_to(endpoint: str) -> SpanProcessor:
    """Sends spans in batches to an OTLP/HTTP receiver, whose address is without `/v1/traces`."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))


class _Open(msgspec.Struct):
    """The open spans of a submitted, unfinished request."""

    context: Context
    kind: str
    submitted_at: float
    done_at: float | None = None


class Tracing:
    """Spans of one server. Thread-safe."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "tinkex", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tinkex.server", __version__)
        self._parent_of = TraceContextTextMapPropagator().extract
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._epoch_s = time.time() - time.monotonic()

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application with a span around each submission."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] not in _TRACED:
                await app(scope, receive, send)
                return
            await self._trace(app, scope, receive, send)

        return traced

    async def _trace(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        carrier = {name: header(scope, name.encode()) for name in ("traceparent", "tracestate")}
        sent = {name: value for name, value in carrier.items() if value}
        with self._tracer.start_as_current_span(
            f"submit {scope['path'].rpartition('/')[2]}",
            context=self._parent_of(sent),
            kind=SpanKind.SERVER,
            attributes={"url.path": scope["path"], "http.request.method": scope["method"]},
        ) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            await app(scope, receive, noted)

    def submitted(self, request_id: str, kind: str) -> None:
        """Starts the queue span of the request whose span is current."""
        span = trace.get_current_span()
        if not span.get_span_context().is_valid:
            return
        span.set_attribute("tinkex.request_id", request_id)
        context = trace.set_span_in_context(span, Context())
        with self._lock:
            self._open[request_id] = _Open(context, kind, time.monotonic())
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)

    def batch_done(self, batch: EngineBatch) -> None:
        """Adds the spans of operations that one engine call computed."""
        ids = [each.request_id for each in batch.operations]
        self._computed(ids, batch.began_at, batch.done_at)

    def sample_done(self, request_id: str, began_at: float, done_at: float) -> None:
        """Adds the spans of a request that an engine has sampled."""
        self._computed([request_id], began_at, done_at)

    def published(self, publish: Publish) -> Publish:
        """`publish`, extended to end the traces of the published results."""

        def traced(results: dict[str, Result], sessions: set[str]) -> None:
            publish(results, sessions)
            for request_id, result in results.items():
                self._finish(request_id, result)

        return traced

    def close(self) -> None:
        """Exports the remaining spans."""
        self._provider.shutdown()

    def _computed(self, request_ids: Sequence[str], began_at: float, done_at: float) -> None:
        for request_id in request_ids:
            with self._lock:
                found = self._open.get(request_id)
            if found is None:
                continue
            found.done_at = done_at
            self._span("queue", found, found.submitted_at, began_at)
            self._span("engine", found, began_at, done_at, len(request_ids))

    def _finish(self, request_id: str, result: Result) -> None:
        with self._lock:
            found = self._open.pop(request_id, None)
        if found is None:
            return
        is_error = result.encoding == "error"
        began_at = found.submitted_at if found.done_at is None else found.done_at
        self._span("result", found, began_at, time.monotonic(), is_error=is_error)

    def _span(
        self,
        name: str,
        request: _Open,
        began_at: float,
        ended_at: float,
        batch_size: int | None = None,
        *,
        is_error: bool = False,
    ) -> None:
        attributes: dict[str, str | int] = {"tinkex.kind": request.kind}
        if batch_size is not None:
            attributes["tinkex.batch_operations"] = batch_size
        span = self._tracer.start_span(
            name, request.context, attributes=attributes, start_time=self._ns(began_at)
        )
        if is_error:
            span.set_status(StatusCode.ERROR)
        span.end(self._ns(max(began_at, ended_at)))

    def _ns(self, monotonic_s: float) -> int:
        return int((monotonic_s + self._epoch_s) * 1e9)
