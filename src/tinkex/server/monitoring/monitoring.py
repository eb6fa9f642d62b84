"""Metrics and traces of one server, as its config enables them.

If both are off, none of their packages is imported and no middleware is added.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from tinkex.errors import ConfigError
from tinkex.scheduler.running.outcomes import Publish
from tinkex.server.config import ServerConfig
from tinkex.server.gate.overload import Overload
from tinkex.server.http.request_metrics import RequestMetrics, RouteLabels
from tinkex.server.services import Services

if TYPE_CHECKING:  # optional packages
    from prometheus_client import CollectorRegistry

    from tinkex.server.monitoring.metric_values import OpenSockets
    from tinkex.server.monitoring.metrics_endpoint import MetricsPort, MetricsToken
    from tinkex.server.monitoring.tracing import Tracing

__all__ = ["Monitoring"]

_logger = logging.getLogger(__name__)


class Monitoring:
    """Call in this order: `wrap`, `publish`, `start`, `close`.

    Raises:
        ConfigError: the token file or the packages for traces cannot be used.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._registry: CollectorRegistry | None = None
        self._token: MetricsToken | None = None
        self._requests: RequestMetrics | None = None
        self._port: MetricsPort | None = None
        self._tracing: Tracing | None = None
        if config.metrics_port is not None or config.metrics_token_file is not None:
            from prometheus_client import CollectorRegistry

            from tinkex.server.monitoring.metrics_endpoint import MetricsToken

            self._registry = CollectorRegistry(auto_describe=False)
            self._token = MetricsToken.of(config)
        if config.otel_endpoint is not None:
            self._tracing = _tracing(config.otel_endpoint)

    def wrap(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> ASGIApp:
        """The application wrapped with request counters, traces and `/metrics`.

        Raises:
            ConfigError: the metrics port cannot be bound.
        """
        if self._tracing is not None:
            app = self._tracing.around(app)
        if self._registry is None:
            return app
        if self._config.metrics_port is not None:
            from tinkex.server.monitoring.metrics_endpoint import MetricsPort

            host, port = self._config.metrics_host, self._config.metrics_port
            self._port = MetricsPort(host, port, self._registry)
            _logger.info("Metrics: http://%s:%d/metrics", host, self._port.port)
        if self._token is not None:
            from tinkex.server.monitoring.metrics_endpoint import MetricsEndpoint

            app = MetricsEndpoint(app, self._token, self._registry)
        self._requests = RequestMetrics(app, RouteLabels(routes))
        return self._requests

    def publish(self, publish: Publish) -> Publish:
        """`publish`, extended to end the traces of the published results."""
        return publish if self._tracing is None else self._tracing.published(publish)

    def start(self, services: Services, overload: Overload, http: OpenSockets) -> None:
        """Begins to read metrics, and to trace work."""
        if self._tracing is not None:
            services.tracing = services.scheduler.counters.listener = self._tracing
        if self._registry is None or self._requests is None:
            return
        from tinkex.server.monitoring.metric_values import MetricValues

        self._registry.register(MetricValues(services, self._requests, overload, http))

    def close(self) -> None:
        """Stops answering, and sends the last spans."""
        if self._port is not None:
            self._port.close()
        if self._tracing is not None:
            self._tracing.close()


def _tracing(endpoint: str) -> Tracing:
    try:
        from tinkex.server.monitoring.tracing import Tracing, exporting_to
    except ImportError as error:
        raise ConfigError(
            f"Traces need packages that are not installed: {error.name} is missing.",
            hint='Install them in the folder of the project: pip install ".[server,otel]".',
            code="no-opentelemetry",
        ) from error
    return Tracing(exporting_to(endpoint))
