"""Overload of the whole server: as many submissions under way at once as are answered in time.

When for a second even the quickest submissions took longer than they should, the queue is not a
burst that passes, and fewer are let in; when all are quick and the room is used up, more are. Those
that find no room are told at once to come again, before anything of them is read: turning away
must cost almost nothing, or it would take the time of the work that was let in. A tenant with
nothing under way is let in before one that fills the room.

Polls, heartbeats and everything else pass: they end work, they do not bring any.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.errors import Busy, error_response

SUBMISSIONS = frozenset(
    f"/api/v1/{name}" for name in ("forward_backward", "forward", "optim_step", "asample")
)

_INTERVAL_S = 0.1
_BURST_S = 1.0
_SAY_AGAIN_S = 30.0
_LEAST_ROOM = 64
_MOST_ROOM = 4096

_logger = logging.getLogger(__name__)


class Gate:
    """The room for submissions; its size follows how long they take. Told the time."""

    def __init__(
        self, target_s: float, *, least: int = _LEAST_ROOM, most: int = _MOST_ROOM
    ) -> None:
        self._target_s = target_s
        self._least = least
        self._most = self.room = most
        self._inside: Counter[str] = Counter()
        self._total = 0
        self._most_inside = 0
        self._quickest_s: float | None = None
        self._looked_at = 0.0
        self._slow_since: float | None = None

    def has_room(self, who: str) -> bool:
        """Whether a submission of this tenant may come in."""
        if self._total < self.room:
            return True
        return self._total < 2 * self.room and not self._inside[who]

    def enter(self, who: str) -> None:
        """Counts a submission whose body has come."""
        self._inside[who] += 1
        self._total += 1
        self._most_inside = max(self._most_inside, self._total)

    def leave(self, who: str, took_s: float, now: float) -> None:
        """Counts it no longer: it was answered after so long."""
        self._total -= 1
        self._inside[who] -= 1
        if not self._inside[who]:
            del self._inside[who]
        if self._quickest_s is None or took_s < self._quickest_s:
            self._quickest_s = took_s
        if now - self._looked_at >= _INTERVAL_S:
            self._resize(self._quickest_s, now)
            self._most_inside, self._quickest_s, self._looked_at = self._total, None, now

    def _resize(self, quickest_s: float, now: float) -> None:
        if quickest_s <= self._target_s:
            self._slow_since = None
            if self._most_inside >= self.room:
                self.room = min(self._most, self.room + 1 + self.room // 16)
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since >= _BURST_S:
            self.room = max(self._least, int(0.8 * min(self.room, self._most_inside)))


class OverloadMiddleware:
    """Turns submissions away with 429 while there is no room for them."""

    def __init__(
        self, app: ASGIApp, gate: Gate, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._gate = gate
        self._clock = clock
        self._num_refused = 0
        self._said_at = -_SAY_AGAIN_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in SUBMISSIONS:
            await self._app(scope, receive, send)
            return
        who = _key(scope)
        if self._gate.has_room(who):
            visit = _Visit(self._gate, who, receive, send, self._clock)
            try:
                await self._app(scope, visit.receive, visit.send)
            finally:
                visit.end()
        else:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        self._num_refused += 1
        now = self._clock()
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            _logger.warning(
                "Overloaded: %d submissions were told to come again.", self._num_refused
            )
        start, body = random.choice(_REFUSALS)  # noqa: S311  no secret: it spreads the retries
        await send(start)
        await send(body)


class _Visit:
    """One submission inside: from its last byte to the first of its answer."""

    __slots__ = ("_clock", "_entered_at", "_gate", "_is_read", "_receive", "_send", "_who")

    def __init__(
        self, gate: Gate, who: str, receive: Receive, send: Send, clock: Callable[[], float]
    ) -> None:
        self._gate = gate
        self._who = who
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
            self._gate.enter(self._who)
        return message

    async def send(self, message: Message) -> None:
        self.end()
        await self._send(message)

    def end(self) -> None:
        """Leaves, if it is inside."""
        if self._entered_at is not None:
            now = self._clock()
            self._gate.leave(self._who, now - self._entered_at, now)
            self._entered_at = None


def _key(scope: Scope) -> str:
    """The credential as it was sent, checked or not: enough to tell tenants apart."""
    return next((value for name, value in scope["headers"] if name == b"x-api-key"), b"").decode(
        "latin-1"
    )


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


_REFUSALS = [_refusal(after_ms) for after_ms in range(500, 1500, 40)]
