"""Overload protection of the whole server: accept no more than can be answered in time.

Two limits apply to submissions: how many are in flight (`concurrency_limit`) and how many come per
second (`rate_limit`). A refused submission is answered 429 with `Retry-After` before its body is
read, since a refusal must cost almost nothing. Polls, heartbeats and all other requests pass: they
finish work rather than add any. Runs on the event loop only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.types import Message, Receive, Send

from tinkex.server.errors import Busy, error_response
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.rate_limit import RateLimit

SUBMISSIONS = frozenset(
    f"/api/v1/{name}"
    for name in ("forward_backward", "forward", "optim_step", "asample", "create_custom_loss")
)
_WARN_EVERY_S = 30.0

_logger = logging.getLogger(__name__)


class Overload:
    """Decides which submissions are accepted, and counts those in flight."""

    def __init__(
        self,
        concurrency: ConcurrencyLimit,
        rate: RateLimit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._clock = clock
        self.num_refused = 0
        self._warned_at = -_WARN_EVERY_S

    def accepts(self, owner: str) -> bool:
        """Whether a tenant's submission is accepted."""
        is_accepted = self._concurrency.admits(owner) and self._rate.admits(owner, self._clock())
        if not is_accepted:
            self._note_refusal()
        return is_accepted

    def in_flight(self, owner: str, receive: Receive, send: Send) -> InFlight:
        """An accepted submission; its messages pass through what this returns."""
        return InFlight(self._concurrency, owner, receive, send, self._clock)

    def _note_refusal(self) -> None:
        self.num_refused += 1
        now = self._clock()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            _logger.warning("Overloaded: %d submissions refused with 429 so far.", self.num_refused)


class InFlight:
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
        """The next message of the request."""
        message = await self._receive()
        if not (self._is_read or message.get("more_body", False)):
            self._is_read = True
            self._entered_at = self._clock()
            self._concurrency.enter(self._owner)
        return message

    async def send(self, message: Message) -> None:
        """Passes on a message of the answer."""
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
