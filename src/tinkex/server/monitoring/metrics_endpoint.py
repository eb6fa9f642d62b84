"""Serves metrics on a separate port, or on the main port behind a token."""

from __future__ import annotations

import asyncio
import hmac
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.errors import Unauthenticated, error_response
from tinkex.server.gate.signing_secret import SecretFile
from tinkex.server.http.headers import header

__all__ = ["MetricsEndpoint", "MetricsPort", "MetricsToken"]

PATH = "/metrics"


class MetricsToken:
    """The token that Prometheus sends as `Authorization: Bearer TOKEN`."""

    def __init__(self, file: SecretFile) -> None:
        self._file = file

    @classmethod
    def of(cls, config: ServerConfig) -> Self | None:
        """The token in the file that the config names; None if it names none.

        Raises:
            ConfigError: the file is missing, malformed or not private.
        """
        path = config.metrics_token_file
        if path is None:
            return None
        try:
            return cls(SecretFile(path, may_be_link=True))
        except ConfigError as error:
            raise ConfigError(
                f"The metrics token {path} cannot be used: it must be a private file (mode 600) of "
                "this user, with 64 hexadecimal characters.",
                hint=f"Make a new one: (umask 077; openssl rand -hex 32 > {path})",
                code="bad-metrics-token",
            ) from error

    def is_in(self, authorization: str) -> bool:
        """Whether the header has the current token, or a rotated one that is still valid."""
        scheme, _, sent = authorization.partition(" ")
        try:
            value = bytes.fromhex(sent.strip())
        except ValueError:
            return False
        matches = [hmac.compare_digest(value, each) for each in self._file.accepted()]
        return scheme.lower() == "bearer" and any(matches)


class MetricsEndpoint:
    """Answers `/metrics` for clients with the token, and passes other requests on."""

    def __init__(self, app: ASGIApp, token: MetricsToken, registry: CollectorRegistry) -> None:
        self._app = app
        self._token = token
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        await (await self._answer(scope))(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if not self._token.is_in(header(scope, b"authorization")):
            return error_response(
                Unauthenticated(
                    "The metrics token is missing or wrong.",
                    hint="Send it as 'Authorization: Bearer TOKEN'; API keys are not accepted.",
                    code="no-metrics-token",
                )
            )
        body = await asyncio.to_thread(generate_latest, self._registry)
        return Response(body, media_type=CONTENT_TYPE_LATEST)


class MetricsPort:
    """A port that serves metrics only.

    Raises:
        ConfigError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"Metrics cannot be served on {host}:{port}: {error.strerror or error}.",
                hint="Choose another --metrics-port or --metrics-host.",
                code="metrics-port-in-use",
            ) from error
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
