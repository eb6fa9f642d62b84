"""Overload of the whole server: no more is let in than is answered in time and gets done.

Two things are watched. The *room* is for submissions under way at once: when for a second even the
quickest took longer than they should, the queue is no burst that passes, and the room shrinks. The
*pace* is for submissions per second: when much is ready to run and the engine is idle half of the
time, then the server itself cannot keep up, and only as many are let in as get done; else taking in
work would leave no time to do any. It stays so for a second after there was too much, and what
is missing is let in when little is left, so that neither a flood nor a drought follows. Work that
waits for a busy engine is no overload.

Who is turned away is told at once when to come again, before anything of the request is read:
a refusal must cost almost nothing. Polls, heartbeats and everything else pass: they end work, they
do not bring any. Runs on the event loop alone.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.scheduler.scheduler import Progress
from tinkex.server.errors import Busy, error_response
from tinkex.server.http.headers import header

SUBMISSIONS = frozenset(
    f"/api/v1/{name}" for name in ("forward_backward", "forward", "optim_step", "asample")
)

_INTERVAL_S = 0.1
_BURST_S = 1.0
_SAY_AGAIN_S = 30.0
_LEAST_ROOM = 64
_MOST_ROOM = 4096
_MUCH_READY = 256
_ENOUGH_READY = 128
_BUSY_ENGINE = (
    0.5  # the share of time above which the engine, not the server, is what is waited for
)

_logger = logging.getLogger(__name__)


class Room:
    """How many submissions may be under way; follows how long they take. Told the time."""

    def __init__(
        self, target_s: float, *, least: int = _LEAST_ROOM, most: int = _MOST_ROOM
    ) -> None:
        self._target_s = target_s
        self._least = least
        self._most = self.size = most
        self._inside: Counter[str] = Counter()
        self._total = 0
        self._most_inside = 0
        self._quickest_s: float | None = None
        self._looked_at = 0.0
        self._slow_since: float | None = None

    def admits(self, who: str) -> bool:
        """Whether a tenant's submission may come in; one with nothing inside goes first."""
        if self._total < self.size:
            return True
        return self._total < 2 * self.size and not self._inside[who]

    def is_full(self) -> bool:
        """Whether not everybody is let in."""
        return self._total >= self.size

    @property
    def inside(self) -> int:
        """How many are inside."""
        return self._total

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
            if self._most_inside >= self.size:
                self.size = min(self._most, self.size + 1 + self.size // 16)
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since >= _BURST_S:
            self.size = max(self._least, int(0.8 * min(self.size, self._most_inside)))


class Pace:
    """How many submissions may come in a tenth of a second, shared out among those who ask."""

    def __init__(self, look: Callable[[], Progress], inside: Callable[[], int] = lambda: 0) -> None:
        self._look = look
        self._inside = inside  # how many are on their way in, and so not in the progress yet
        self._looked_at = 0.0
        self._before: Progress | None = None
        self._allowed: int | None = None
        self._rate = 0.0
        self._engine_share = 0.0
        self._behind_at = -_BURST_S
        self._count = 0
        self._asked: Counter[str] = Counter()
        self._asked_before: frozenset[str] = frozenset()

    def admits(self, who: str, now: float) -> bool:
        """Whether a tenant's submission may come in now."""
        if self.turns_away(who, now):
            return False
        self._asked[who] += 1
        self._count += 1
        return True

    def is_limited(self, now: float) -> bool:
        """Whether there is a bound now."""
        if now - self._looked_at >= _INTERVAL_S:
            self._begin(now)
        return self._allowed is not None

    def turns_away(self, who: str, now: float) -> bool:
        """Whether a tenant's submission may not come in now; that it asked is noted then."""
        if not self.is_limited(now):
            return False
        assert self._allowed is not None
        share = max(1, self._allowed // max(1, len(self._asked_before)))
        # Who did not ask of late has no part in the shares; it must not find them all gone.
        most = self._allowed if who in self._asked_before else 2 * self._allowed
        is_over = self._count >= most or self._asked[who] >= share
        if is_over:
            self._asked[who] += 1
        return is_over

    def _begin(self, now: float) -> None:
        """A new tenth of a second."""
        progress, passed_s = self._look(), now - self._looked_at
        before, self._before, self._looked_at = self._before, progress, now
        over = max(0, self._count - self._allowed) if self._allowed is not None else 0
        self._asked_before, self._count = frozenset(self._asked), 0
        self._asked.clear()
        if before is None or passed_s > 10 * _INTERVAL_S:
            self._allowed = None
            return
        finished = (progress.num_finished - before.num_finished) / passed_s
        weight = min(1.0, passed_s / _BURST_S)
        self._rate += weight * (finished - self._rate)
        worked = max(0.0, progress.engine_s - before.engine_s) / passed_s
        self._engine_share += weight * (worked - self._engine_share)
        waiting = progress.num_ready + self._inside()
        if self._engine_share >= _BUSY_ENGINE:
            self._behind_at = -_BURST_S
        elif waiting > _MUCH_READY:
            self._behind_at = now
        self._allowed = None
        if now - self._behind_at < _BURST_S:
            done = self._rate * min(passed_s, 3 * _INTERVAL_S)
            missing = max(0, _ENOUGH_READY - waiting)  # or work would run out after a slow moment
            self._allowed = max(1, round(done + missing / 2) - over)


class Door:
    """Who may come in. Keys nobody knows yet pass: it is not here that they are checked."""

    def __init__(
        self,
        room: Room,
        pace: Pace,
        owner_of: Callable[[str], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.room = room
        self.clock = clock
        self.owner_of = owner_of
        self._pace = pace
        self._num_refused = 0
        self._said_at = -_SAY_AGAIN_S

    def is_tight(self) -> bool:
        """Whether anybody might be turned away now."""
        return self.room.is_full() or self._pace.is_limited(self.clock())

    def turns_away(self, key: str) -> bool:
        """Whether a submission under this key is refused; who is not is asked again inside."""
        owner = self.owner_of(key)
        if owner is None:
            return False
        is_refused = not self.room.admits(owner) or self._pace.turns_away(owner, self.clock())
        if is_refused:
            self._note_refusal()
        return is_refused

    def lets_in(self, owner: str) -> bool:
        """Whether a tenant's submission comes in."""
        is_let_in = self.room.admits(owner) and self._pace.admits(owner, self.clock())
        if not is_let_in:
            self._note_refusal()
        return is_let_in

    def _note_refusal(self) -> None:
        self._num_refused += 1
        now = self.clock()
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            _logger.warning(
                "Overloaded: %d submissions were told to come again so far.", self._num_refused
            )


class OverloadMiddleware:
    """Answers submissions with 429 while there is no room for them or they come too fast."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in SUBMISSIONS:
            await self._app(scope, receive, send)
            return
        door = self._door
        owner = door.owner_of(header(scope, b"x-api-key"))
        if owner is None:
            await self._app(scope, receive, send)
        elif door.lets_in(owner):
            visit = _Visit(door.room, owner, receive, send, door.clock)
            try:
                await self._app(scope, visit.receive, visit.send)
            finally:
                visit.end()
        else:
            for message in random.choice(REFUSALS):  # noqa: S311  no secret: it spreads the retries
                await send(message)


class _Visit:
    """One submission inside: from its last byte to the first of its answer."""

    __slots__ = ("_clock", "_entered_at", "_is_read", "_receive", "_room", "_send", "_who")

    def __init__(
        self, room: Room, who: str, receive: Receive, send: Send, clock: Callable[[], float]
    ) -> None:
        self._room = room
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
            self._room.enter(self._who)
        return message

    async def send(self, message: Message) -> None:
        self.end()
        await self._send(message)

    def end(self) -> None:
        """Leaves, if it is inside."""
        if self._entered_at is not None:
            now = self._clock()
            self._room.leave(self._who, now - self._entered_at, now)
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
