"""A span for each call of the SDK that gives a Future, where the program uses OpenTelemetry.

Nothing is imported for it: only a program that has imported `opentelemetry.trace` and has set a
tracer provider gets spans. Requests made inside a call carry its context as `traceparent` (W3C), so
that a server's spans become children of it. Spans name the call alone: no prompt, no key, no data.
"""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable
from typing import Any

from tinkex.client.futures import Future
from tinkex.version import __version__

__all__ = ["trace_headers", "traced_call"]


def traced_call(name: str, call: Callable[[], Any]) -> Any:
    """What the call gives, a Future or a stream, inside a span that ends with its result."""
    tracer = _tracer()
    if tracer is None:
        return call()
    trace = sys.modules["opentelemetry.trace"]
    span = tracer.start_span(name, kind=trace.SpanKind.CLIENT)
    try:
        with trace.use_span(span):
            given = call()
    except BaseException:
        span.end()
        raise
    future = given if isinstance(given, Future) else given.future
    future.future().add_done_callback(lambda done: _end(span, done))
    return given


def trace_headers() -> dict[str, str]:
    """The headers that name the span in whose call this is; none without a span."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def _tracer() -> Any:
    """The program's tracer; None if it has set no provider."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    return provider.get_tracer("tinkex", __version__)


def _end(span: Any, done: Any) -> None:
    from opentelemetry.trace import StatusCode

    # A refused call counts as unread until the program itself reads its error.
    error = None if done.cancelled() else concurrent.futures.Future.exception(done)
    if error is not None:
        span.set_status(StatusCode.ERROR, type(error).__name__)
    elif done.cancelled():
        span.set_attribute("tinkex.is_cancelled", True)
    span.end()
