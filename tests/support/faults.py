"""Scripts for a loopback server: which requests go wrong, how, and how often.

    server.on("asample").reply(status=429, headers={"retry-after-ms": "50"})
    server.on("optim_step").apply_then_drop().times(2)
    server.on("retrieve_future").not_ready(queue_state="paused_capacity").after(1)

A rule acts once unless `.times(n)` or `.always()` says otherwise; of several rules that match, the
one written first acts. `hits` counts how often a rule has acted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from tests.support.http_server import Fault, Response

BAD_GATEWAY = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


class Rule:
    """What happens to the requests of one route."""

    def __init__(self, route: str) -> None:
        self.route = route
        self.fault: Fault | None = None
        self.hits = 0
        self._left: int | None = 1
        self._skip = 0
        self._predicate: Callable[[Any], bool] = lambda body: True

    # How often, and to which requests.

    def times(self, count: int) -> Self:
        """Act on this many requests."""
        self._left = count
        return self

    def always(self) -> Self:
        """Act on every request."""
        self._left = None
        return self

    def after(self, count: int) -> Self:
        """Let this many requests pass first."""
        self._skip = count
        return self

    def when(self, predicate: Callable[[Any], bool]) -> Self:
        """Act only on requests whose decoded body satisfies the predicate."""
        self._predicate = predicate
        return self

    def off(self) -> None:
        """Act no more."""
        self._left = 0

    # Answers in place of the service's own; the service never sees the request.

    def reply(
        self,
        status: int = 200,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | str = b"",
        json_body: Any = None,
    ) -> Self:
        """Answer this."""
        return self._act(
            Fault(answer=_response(status, headers, body, json_body), is_applied=False)
        )

    def html_502(self) -> Self:
        """Answer what a proxy says whose upstream is away."""
        return self.reply(502, headers={"Content-Type": "text/html"}, body=BAD_GATEWAY)

    def empty_400(self) -> Self:
        """Answer what a proxy says that dislikes a reused connection."""
        return self.reply(400, headers={"Content-Length": "0"})

    def not_ready(self, queue_state: str = "active", reason: str | None = None) -> Self:
        """Answer a poll with 408."""
        return self.reply(408, json_body=_queue(queue_state, reason))

    def try_again(self, queue_state: str = "active", reason: str | None = None) -> Self:
        """Answer a poll with 200 and `try_again`."""
        body = {"type": "try_again", "request_id": "any", **_queue(queue_state, reason)}
        return self.reply(200, json_body=body)

    def failed(self, message: str, category: str = "user") -> Self:
        """Answer a poll with a failed result."""
        return self.reply(200, json_body={"error": message, "category": category})

    # Connections cut before the service sees the request.

    def drop_before_body(self, *, is_reset: bool = False) -> Self:
        """Cut the connection after the request's headers, its body unread."""
        return self._act(Fault(cut="after_head", is_reset=is_reset, is_applied=False))

    def drop_before_answer(self, *, is_reset: bool = False) -> Self:
        """Cut the connection after the whole request, which is not applied."""
        return self._act(Fault(cut="after_request", is_reset=is_reset, is_applied=False))

    # The request is applied, the answer suffers.

    def apply_then_drop(self, *, is_reset: bool = False) -> Self:
        """Apply the request and cut the connection without an answer."""
        return self._act(Fault(cut="before_answer", is_reset=is_reset))

    def apply_then_reply(
        self, status: int, *, headers: Mapping[str, str] | None = None, body: bytes | str = b""
    ) -> Self:
        """Apply the request and answer something else."""
        return self._act(Fault(answer=_response(status, headers, body, None)))

    def drop_after_headers(self) -> Self:
        """Apply the request, send the answer's headers, and cut."""
        return self._act(Fault(cut="after_headers"))

    def truncate_body(self, size: int, *, is_reset: bool = False) -> Self:
        """Apply the request, send `size` bytes of the answer's body, and cut."""
        return self._act(Fault(cut="in_body", cut_at=size, is_reset=is_reset))

    def close_after(self) -> Self:
        """Answer properly and close the connection, without having said so."""
        return self._act(Fault(cut="after_answer"))

    def slow(self, bytes_per_s: float) -> Self:
        """Send the answer's body at this speed."""
        return self._act(Fault(bytes_per_s=bytes_per_s))

    def duplicate(self) -> Self:
        """Write the whole answer twice."""
        return self._act(Fault(copies=2))

    def gzipped(self) -> Self:
        """Compress the answer."""
        return self._act(Fault(is_gzipped=True))

    def chunked(self) -> Self:
        """Send the answer in chunks, its length unannounced."""
        return self._act(Fault(is_chunked=True))

    def truncate_chunks(self, size: int) -> Self:
        """Send so many bytes of an answer in chunks, and cut."""
        return self._act(Fault(is_chunked=True, cut="in_body", cut_at=size))

    def stall_100_continue(self) -> Self:
        """Send `100 Continue` and keep the answer back until `release()`."""
        return self._act(Fault(early_continue=True, gate=Door()))

    def withhold_continue(self) -> Self:
        """Leave a client that sent `Expect: 100-continue` without its go-ahead."""
        return self._act(Fault(withhold_continue=True))

    def reorder(self, count: int) -> Self:
        """Keep back `count` answers and send them last first."""
        return self._act(Fault(gate=Reversal(count))).times(count)

    def hold(self) -> Self:
        """Keep the answers back until `release()`."""
        return self._act(Fault(gate=Door()))

    def held(self) -> Self:
        """Keep this rule's own answer back until `release()`."""
        assert self.fault is not None
        return self._act(dataclasses.replace(self.fault, gate=Door()))

    def release(self) -> None:
        """Let held answers go, these and all later ones."""
        assert self.fault is not None
        assert isinstance(self.fault.gate, Door)
        self.fault.gate.open()

    # Used by the server.

    def acts_on_head(self) -> bool:
        """Whether the fault strikes before the body was read."""
        return self.fault is not None and (
            self.fault.cut == "after_head" or self.fault.withhold_continue
        )

    def take(self, route: str, body: Any) -> Fault | None:
        """The fault for this request, if it is this rule's turn."""
        if self.fault is None or self._left == 0 or route != self.route:
            return None
        if not self._predicate(body):
            return None
        if self._skip:
            self._skip -= 1
            return None
        if self._left is not None:
            self._left -= 1
        self.hits += 1
        return self.fault

    def _act(self, fault: Fault) -> Self:
        self.fault = fault
        return self


class Script:
    """The rules of one server, in the order in which they were written."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def on(self, route: str) -> Rule:
        """A new rule for this route."""
        self.rules.append(rule := Rule(route))
        return rule

    def at_head(self, route: str) -> Fault | None:
        """The fault that strikes before the body is read."""
        return self._take((rule for rule in self.rules if rule.acts_on_head()), route, None)

    def at_request(self, route: str, body: Any) -> Fault:
        """The fault that strikes the whole request."""
        rules = (rule for rule in self.rules if not rule.acts_on_head())
        return self._take(rules, route, body) or Fault()

    def _take(self, rules: Any, route: str, body: Any) -> Fault | None:
        return next((fault for rule in rules if (fault := rule.take(route, body))), None)


class Door:
    """Lets no request through until it is opened, from whatever thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    async def passed(self) -> None:
        entry = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.add(entry)
        if self._is_open:
            return
        await entry[1].wait()

    def open(self) -> None:
        self._is_open = True
        for loop, event in tuple(self._waiting):
            loop.call_soon_threadsafe(event.set)


class Reversal:
    """Waits until `count` are there, then lets them go in the reverse order."""

    STEP_S = 0.005

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: list[asyncio.Event] = []

    async def passed(self) -> None:
        event = asyncio.Event()
        self._waiting.append(event)
        if len(self._waiting) == self._count:
            loop = asyncio.get_running_loop()
            for place, waiting in enumerate(reversed(self._waiting)):
                loop.call_later(place * self.STEP_S, waiting.set)
            self._waiting = []
        await event.wait()


def _response(
    status: int, headers: Mapping[str, str] | None, body: bytes | str, json_body: Any
) -> Response:
    found = dict(headers or {})
    if json_body is not None:
        found.setdefault("Content-Type", "application/json")
        body = json.dumps(json_body)
    return Response(status, found, body.encode() if isinstance(body, str) else body)


def _queue(state: str, reason: str | None) -> dict[str, str]:
    return {"queue_state": state} | ({"queue_state_reason": reason} if reason else {})
