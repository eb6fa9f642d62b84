"""Options of `tinkex serve` for metrics, traces and the form of the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["monitoring_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        envvar="TINKEX_METRICS_PORT",
        help="Serve metrics for Prometheus on this port of its own; 0 picks a free one.",
    ),
    click.option(
        "--metrics-host",
        envvar="TINKEX_METRICS_HOST",
        default="127.0.0.1",
        show_default=True,
        help="Address of that port. It needs no token: open it to your Prometheus alone.",
    ),
    click.option(
        "--metrics-token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="TINKEX_METRICS_TOKEN_FILE",
        help="Serve /metrics on the server's own port to those who send the token in this file.",
    ),
    click.option(
        "--otel-endpoint",
        envvar="TINKEX_OTEL_ENDPOINT",
        show_default="OTEL_EXPORTER_OTLP_ENDPOINT",
        metavar="URL",
        help="Send OpenTelemetry traces to this OTLP/HTTP receiver, such as http://host:4318.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        envvar="TINKEX_LOG_FORMAT",
        default="text",
        show_default=True,
        help="Log lines for people, or one JSON object a line.",
    ),
)


def monitoring_options(command: Command) -> Command:
    """Adds the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
