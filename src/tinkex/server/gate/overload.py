"""Overload protection of the whole server: accept no more than can be answered in time.

Two limits apply to submissions: how many are in flight (`concurrency_limit`) and how many come per
second (`rate_limit`). A refused submission is answered 429 with `Retry-After` before its body is
read, since a refusal must cost almost nothing. Polls, heartbeats and all other requests pass: they
finish work rather than add any. Runs on the event loop only.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.errors import Busy, error_response
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.http.headers import header

SUBMISSIONS = frozenset(
    f"/api/v1/{name}" for name in ("forward_backward", "forward", "optim_step", "asample")
)
_WARN_EVERY_S = 30.0

_logger = logging.getLogger(__name__)


class OverloadGate:
    """Decides which submissions are accepted. Unknown keys pass: authentication refuses them."""

    def __init__(
        self,
        concurrency: ConcurrencyLimit,
        rate: RateLimit,
        owner_of: Callable[[str], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.clock = clock
        self.owner_of = owner_of
        self._rate = rate
        self._num_refused = 0
        self._warned_at = -_WARN_EVERY_S

    def is_limiting(self) -> bool:
        """Whether any submission would be refused now."""
        return self.concurrency.is_full() or self._rate.is_limited(self.clock())

    def refuses(self, key: str) -> bool:
        """Whether a submission with this key is refused unparsed; if not, `accepts` decides."""
        owner = self.owner_of(key)
        if owner is None:
            return False
        is_refused = not self.concurrency.admits(owner) or self._rate.refuses(owner, self.clock())
        if is_refused:
            self._note_refusal()
        return is_refused

    def accepts(self, owner: str) -> bool:
        """Whether a tenant's submission is accepted."""
        is_accepted = self.concurrency.admits(owner) and self._rate.admits(owner, self.clock())
        if not is_accepted:
            self._note_refusal()
        return is_accepted

    def _note_refusal(self) -> None:
        self._num_refused += 1
        now = self.clock()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            _logger.warning(
                "Overloaded: %d submissions refused with 429 so far.", self._num_refused
            )


class OverloadMiddleware:
    """Answers submissions beyond the limits with 429."""

    def __init__(self, app: ASGIApp, gate: OverloadGate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in SUBMISSIONS:
            await self._app(scope, receive, send)
            return
        gate = self._gate
        owner = gate.owner_of(header(scope, b"x-api-key"))
        if owner is None:
            await self._app(scope, receive, send)
        elif gate.accepts(owner):
            request = _InFlight(gate.concurrency, owner, receive, send, gate.clock)
            try:
                await self._app(scope, request.receive, request.send)
            finally:
                request.end()
        else:
            for message in random.choice(REFUSALS):  # noqa: S311  no secret: it spreads the retries
                await send(message)


class _InFlight:
    """One accepted submission: from the last byte of its body to the first of its response."""

    __slots__ = ("_clock", "_concurrency", "_entered_at", "_is_read", "_owner", "_receive", "_send")

    def __init__(
        self,
        concurrency: ConcurrencyLimit,
        owner: str,
        receive: Receive,
        send: Send,
        clock: Callable[[], float],
    ) -> None:
        self._concurrency = concurrency
        self._owner = owner
        self._receive = receive
        self._send = send
        self._clock = clock
        self._is_read = False
        self._entered_at: float | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if not (self._is_read or message.get("more_body", False)):
            self._is_read = True
            self._entered_at = self._clock()
            self._concurrency.enter(self._owner)
        return message

    async def send(self, message: Message) -> None:
        self.end()
        await self._send(message)

    def end(self) -> None:
        """Ends the submission, if it was counted."""
        if self._entered_at is not None:
            now = self._clock()
            self._concurrency.leave(self._owner, now - self._entered_at, now)
            self._entered_at = None


def _refusal(after_ms: int) -> tuple[Message, Message]:
    busy = Busy("The server is overloaded.", retry_after_s=1.0, hint="Try again in a second.")
    body = bytes(error_response(busy).body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
        (b"retry-after-ms", str(after_ms).encode()),
    ]
    return (
        {"type": "http.response.start", "status": busy.status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


REFUSALS = [_refusal(after_ms) for after_ms in range(500, 1500, 40)]
