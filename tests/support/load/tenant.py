"""One tenant of a load: its connections, its run, its sampler, and what it waits for.

Numbers are given when a request leaves, and a number that was turned away is used by the next
request, so that refusals leave no holes in the order of a run.
"""

from __future__ import annotations

import asyncio
import heapq
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.load import work
from tests.support.load.wire import Wire, connect

_PROMISED = msgspec.json.Decoder(
    msgspec.defstruct("Promised", [("request_id", str)], frozen=True, gc=False)
)
_ROUTES = {"pass": "forward_backward", "step": "optim_step", "sample": "asample"}
_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"


@dataclass(slots=True)
class Phase:
    """What became of the requests of one stretch of time."""

    offered: int = 0
    accepted_s: list[float] = field(default_factory=list)
    """From when a request should have left to its promise."""
    answered_s: list[float] = field(default_factory=list)
    """The same from when it left, without the wait for one of its tenant's connections."""
    shed_s: list[float] = field(default_factory=list)
    """The same to an answer of 429 or 503."""
    completed: int = 0
    """Results that came within this time."""
    unsent: int = 0
    """Requests that found no free connection before the time was over."""
    without_retry_after: int = 0
    lost: int = 0
    """Connections that ended under a request."""
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Operation:
    """A request on its way."""

    kind: str
    variant: int
    intended: float
    phase: Phase
    target: str = ""
    seq_id: int = -1
    request_id: str = ""
    sent_at: float = 0.0


class Tenant:
    """Sends operations over its few connections, and fetches what was promised."""

    def __init__(self, address: tuple[str, int], key: str, records: work.Records) -> None:
        self.model_id = ""
        self.sampler_id = ""
        self.outstanding = 0  # sent and not yet answered for good
        self.current = Phase()  # where completions count
        self.free_numbers: list[int] = []
        self._address = address
        self._key = key
        self._records = records
        self._wires: list[Wire] = []
        self._submits: deque[Operation] = deque()
        self._fetches: deque[Operation] = deque()
        self._fetching = 0
        self._most_fetching = 1
        self._usual = self._most = self._count = 0
        self._next_number = {"train": 1, "sample": 0}
        self._heads: dict[str, bytes] = {}
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def open(self, connections: int) -> None:
        """Connects; polls, which are long, may hold at most half of the connections."""
        self._wires = [await connect(*self._address) for _ in range(connections)]
        self._most_fetching = _for_polls(connections)
        self._usual = self._most = self._count = connections

    def spread(self, most: int) -> None:
        """Opens up to so many connections where a request finds none free."""
        self._most = most
        self._most_fetching = _for_polls(most)

    def gather(self) -> None:
        """Closes again what was opened beyond the usual."""
        self._most = self._usual
        self._most_fetching = _for_polls(self._usual)
        while self._count > self._usual and self._wires:
            self._wires.pop().close()
            self._count -= 1

    @property
    def unsent(self) -> int:
        """Requests that wait for a connection."""
        return len(self._submits)

    def submit(self, operation: Operation) -> None:
        """Sends an operation as soon as a connection is free."""
        self._submits.append(operation)
        self.pump()

    def give_up(self) -> None:
        """Forgets what was not sent yet."""
        for operation in self._submits:
            operation.phase.unsent += 1
            if operation.seq_id >= 0:
                self._turned_away(operation)
        self._submits.clear()

    def fetch(self, operation: Operation) -> None:
        """Asks for a promised result until it is there."""
        self._fetches.append(operation)
        self.pump()

    def pump(self) -> None:
        """Uses every free connection there is work for; results go first."""
        while self._wires and (self._submits or self._fetches):
            may_fetch = bool(self._fetches) and self._fetching < self._most_fetching
            if not may_fetch and not self._submits:
                return
            wire = self._wires.pop()
            if not wire.is_open:
                self._replace()
            elif may_fetch:
                self._send_fetch(wire, self._fetches.popleft())
            else:
                self._send_submit(wire, self._submits.popleft())
        for _ in range(min(self._most - self._count, self.unsent - len(self._reconnecting))):
            self._count += 1
            self._replace()

    async def call(self, path: str, payload: dict[str, object]) -> Any:
        """The answer to one request that must succeed; only while nothing else is sent."""
        request = self._request(path, msgspec.json.encode(payload))
        status, answer = await _exchange(self._wires[-1], request)
        assert status == 200, f"{path}: {status} {answer[:300]!r}"
        return msgspec.json.decode(answer)

    async def promise(self, operation: Operation) -> None:
        """Has a numbered operation promised; only while nothing else is sent."""
        while True:
            status, answer = await _exchange(self._wires[-1], self._submission(operation))
            if status == 200:
                operation.request_id = _PROMISED.decode(answer).request_id
                return
            assert status == 429, f"{status} {answer[:300]!r}"
            await asyncio.sleep(0.5)

    async def has_result(self, wire: Wire, operation: Operation) -> bool:
        """Whether one poll brought the result."""
        return (await _exchange(wire, self._poll(operation)))[0] == 200

    async def extra_wire(self) -> Wire:
        """One more connection, for the caller alone."""
        return await connect(*self._address)

    def close(self) -> None:
        """Ends the connections."""
        for wire in self._wires:
            wire.close()

    # Sending --------------------------------------------------------------------------------------

    def _send_submit(self, wire: Wire, operation: Operation) -> None:
        if operation.seq_id < 0:
            self._number(operation)
        self.outstanding += 1
        operation.sent_at = asyncio.get_running_loop().time()
        wire.send(
            self._submission(operation),
            lambda status, head, got: self._on_promise(wire, operation, status, head, got),
        )

    def _on_promise(
        self, wire: Wire, operation: Operation, status: int, head: bytes, body: bytes
    ) -> None:
        phase = operation.phase
        now = asyncio.get_running_loop().time()
        waited = now - operation.intended
        self._release(wire)
        if status == 200:
            phase.accepted_s.append(waited)
            phase.answered_s.append(now - operation.sent_at)
            operation.request_id = _PROMISED.decode(body).request_id
            self._fetches.append(operation)
        else:
            self.outstanding -= 1
            self._on_refusal(operation, status, head, body, waited)
        self.pump()

    def _on_refusal(
        self, operation: Operation, status: int, head: bytes, body: bytes, waited: float
    ) -> None:
        phase = operation.phase
        if status == 0:
            phase.lost += 1
            self._submits.appendleft(operation)  # under the same number: it may have arrived
            return
        if status in (429, 503):
            phase.shed_s.append(waited)
            phase.without_retry_after += b"\r\nretry-after" not in head
        if status != 429:
            phase.errors[f"{status} {body[:200]!r}"] += 1
        self._turned_away(operation)

    def _send_fetch(self, wire: Wire, operation: Operation) -> None:
        self._fetching += 1
        wire.send(
            self._poll(operation),
            lambda status, _, body: self._on_result(wire, operation, status, body),
        )

    def _on_result(self, wire: Wire, operation: Operation, status: int, body: bytes) -> None:
        self._fetching -= 1
        self._release(wire)
        if status == 200:
            self.outstanding -= 1
            self.current.completed += 1
            self._keep(operation, body)
        elif status in (0, 408):
            operation.phase.lost += status == 0
            self._fetches.append(operation)
        else:
            self.outstanding -= 1
            operation.phase.errors[f"result {status} {body[:200]!r}"] += 1
        self.pump()

    def _keep(self, operation: Operation, body: bytes) -> None:
        kept = self._records.samples if operation.kind == "sample" else self._records.models
        of_target = kept.setdefault(operation.target, {})
        assert operation.seq_id not in of_target, "one result for each number"
        of_target[operation.seq_id] = work.Record(
            operation.kind, operation.variant, operation.request_id, zlib.crc32(body)
        )

    # Numbers --------------------------------------------------------------------------------------

    def _number(self, operation: Operation) -> None:
        if operation.kind != "sample" and self.free_numbers:
            operation.seq_id = heapq.heappop(self.free_numbers)
        else:
            line = "sample" if operation.kind == "sample" else "train"
            operation.seq_id = self._next_number[line]
            self._next_number[line] += 1
        operation.target = self.sampler_id if operation.kind == "sample" else self.model_id

    def _turned_away(self, operation: Operation) -> None:
        if operation.kind != "sample":
            heapq.heappush(self.free_numbers, operation.seq_id)

    # Connections ----------------------------------------------------------------------------------

    def _release(self, wire: Wire) -> None:
        if wire.is_open:
            self._wires.append(wire)
        else:
            self._replace()

    def _replace(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reconnect())
        self._reconnecting.add(task)
        task.add_done_callback(self._reconnecting.discard)

    async def _reconnect(self) -> None:
        self._wires.append(await connect(*self._address))
        self.pump()

    def _submission(self, operation: Operation) -> bytes:
        content = _PROTOBUF if operation.kind == "pass" else _JSON
        return self._request(_ROUTES[operation.kind], body_of(operation), content)

    def _poll(self, operation: Operation) -> bytes:
        request = b'{"request_id":"%s"}' % operation.request_id.encode()
        return self._request("retrieve_future", request)

    def _request(self, path: str, body: bytes, content: str = _JSON) -> bytes:
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = (
                f"POST /api/v1/{path} HTTP/1.1\r\nHost: {self._address[0]}\r\n"
                f"X-API-Key: {self._key}\r\nAccept: {_PROTOBUF}\r\nContent-Type: {content}\r\n"
                "Content-Length: "
            ).encode()
        return b"%s%d\r\n\r\n%s" % (head, len(body), body)


def _for_polls(connections: int) -> int:
    return connections // 2


async def _exchange(wire: Wire, request: bytes) -> tuple[int, bytes]:
    """Status and body of one answer."""
    answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    wire.send(request, lambda status, _, body: answered.set_result((status, body)))
    return await answered


_TAILS = [work.training_tail(variant) for variant in range(work.VARIANTS)]


def body_of(operation: Operation) -> bytes:
    """The body of a numbered operation."""
    if operation.kind == "pass":
        head = work.training_head(operation.target.encode(), operation.seq_id)
        return head + _TAILS[operation.variant]
    if operation.kind == "step":
        return work.step_body(operation.target, operation.seq_id, operation.variant)
    return work.sample_body(operation.target, operation.seq_id, operation.variant)
