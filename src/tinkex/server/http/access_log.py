"""The access log: one line per request, with whose key it was and never the key.

`POST /api/v1/optim_step 200 3.1 ms laptop/alice in=182 out=97`: method, path without its query,
status ("-" if the client left before an answer), time, name and owner of the key, bytes of the
request's body and of the answer's. Clients poll all the time, so polls that went well are counted,
and logged once a minute.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.telemetry.redaction import redact_text

__all__ = ["AccessLog"]

_logger = logging.getLogger("tinkex.access")

_POLLS = frozenset(
    {
        "/healthz",
        "/api/v1/healthz",
        "/api/v1/retrieve_future",
        "/api/v1/retrieve_futures",
        "/api/v1/session_heartbeat",
        "/api/v1/client/dynamic_config",
        "/api/v1/telemetry",
    }
)
_NOT_YET = 408  # the answer to a poll whose result is not there yet
_COUNT_EVERY_S = 60.0
_SHOWN_CHARS = 200


class AccessLog:
    """Wraps the whole application and logs each request when it has ended."""

    def __init__(
        self, app: ASGIApp, *, with_polls: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._with_polls = with_polls
        self._clock = clock
        self._polls: Counter[str] = Counter()
        self._counted_since = clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange, began = _Exchange(receive, send), self._clock()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._log(scope, exchange, self._clock() - began)

    def tell_polls(self) -> None:
        """Logs how many polls were counted since this was last done."""
        now = self._clock()
        if self._polls:
            _logger.info(
                "Polls in the last %.0f s: %s",
                now - self._counted_since,
                ", ".join(f"{count:,} {path}" for path, count in sorted(self._polls.items())),
            )
        self._polls.clear()
        self._counted_since = now

    def _log(self, scope: Scope, exchange: _Exchange, took_s: float) -> None:
        status, path = exchange.status, scope["path"]
        if self._clock() - self._counted_since >= _COUNT_EVERY_S:
            self.tell_polls()
        if path in _POLLS and not self._with_polls and (0 < status < 400 or status == _NOT_YET):
            self._polls[path] += 1
            return
        fields = {
            "method": scope["method"],
            "path": _shown(scope.get("raw_path", b"").decode("ascii", "backslashreplace")),
            "status": status or "-",
            "took_ms": round(1000 * took_s, 1),
            "caller": _caller(scope),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
        }
        _logger.info("%s %s %s %.1f ms %s in=%d out=%d", *fields.values(), extra={"fields": fields})


class _Exchange:
    """Counts what passes in one request."""

    __slots__ = ("_receive", "_send", "bytes_in", "bytes_out", "status")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.bytes_in = self.bytes_out = self.status = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.bytes_out += len(message.get("body", b""))
        await self._send(message)


def _caller(scope: Scope) -> str:
    key = scope.get("state", {}).get("key")
    return "-" if key is None else _shown(f"{key.name}/{key.owner}").replace(" ", "_")


def _shown(text: str) -> str:
    """A text from outside, on one line, without keys and without marks that steer a terminal."""
    text = redact_text(text)
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return text if text.isprintable() else ascii(text)[1:-1]
