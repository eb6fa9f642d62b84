"""Limits per tenant: requests per second, open requests, bytes being read.

A refusal costs three comparisons and says when to retry. An admitted request waits for a slot (see
`fair_semaphore`) before it is worked on. Runs on the event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tinkex.server.errors import Busy, OverCapacity
from tinkex.server.gate.fair_semaphore import FairSemaphore
from tinkex.wire.limits import Limits

_HINT_LASTS_S = 60.0
CURRENT_TICKET: ContextVar[Ticket | None] = ContextVar("current", default=None)


@dataclass(slots=True)
class _Tenant:
    """What one tenant has open, and how many requests it may still send at once."""

    tokens: float
    counted_at: float
    open_requests: int = 0
    open_bytes: int = 0
    refused_at: float = -1e9
    refused_for: str = ""


@dataclass(slots=True)
class Ticket:
    """An admitted request; `leave` releases everything it holds."""

    _admission: Admission
    _tenant: _Tenant
    _owner: str
    _bytes: int = field(default=0)
    has_slot: bool = field(default=False)

    async def acquire_slot(self) -> None:
        """Waits for a slot; returns at once if the request holds one."""
        if not self.has_slot:
            await self._admission.slots.acquire(self._owner)
            self.has_slot = True

    def release_slot(self) -> None:
        """Frees the slot while this request waits for something."""
        if self.has_slot:
            self.has_slot = False
            self._admission.slots.release(self._owner)

    def take_bytes(self, count: int) -> None:
        """Counts bytes of the body, before or while they are read.

        Raises:
            Busy: the tenant has too many bytes open.
            OverCapacity: all tenants together have.
        """
        self._admission.take_bytes(self._tenant, count)
        self._bytes += count

    @contextmanager
    def decoding(self, count: int) -> Iterator[None]:
        """Counts the memory that decoding a body needs beside the body itself.

        A single body always fits: its count is capped at the tenant's limit.

        Raises:
            Busy: the tenant has too many bytes open.
            OverCapacity: all tenants together have.
        """
        count = max(0, min(count, self._admission.limits.max_open_body_bytes - self._bytes))
        self._admission.take_bytes(self._tenant, count)
        try:
            yield
        finally:
            self._admission.release_bytes(self._tenant, count)

    def leave(self) -> None:
        """Releases everything."""
        self.release_slot()
        self._admission.leave(self._tenant, self._bytes)


class Admission:
    """The counters of all tenants."""

    def __init__(
        self,
        limits: Limits,
        *,
        max_body_bytes_in_memory: int = 2 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._max_bytes = max_body_bytes_in_memory
        self._open_bytes = 0
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self.slots = FairSemaphore()
        self.num_refused = 0  # requests of tenants above their limits

    def enter(self, owner: str) -> Ticket:
        """Admits a request.

        Raises:
            Busy: the tenant sends too many requests per second, or has too many open.
        """
        limits, now = self.limits, self._clock()
        tenant = self._tenants.get(owner)
        if tenant is None:
            tenant = self._tenants[owner] = _Tenant(limits.max_burst_requests, now)
        if tenant.open_requests >= limits.max_open_requests:
            raise self._refusal(
                tenant,
                f"You have {tenant.open_requests} requests open, and this server's limit "
                f"(max_open_requests) is {limits.max_open_requests}.",
                1.0,
            )
        if limits.max_requests_per_s:
            self._take_token(tenant, now)
        tenant.open_requests += 1
        return Ticket(self, tenant, owner)

    def throttled(self, owner: str) -> str:
        """Why the tenant was refused within the last minute; empty if it was not."""
        tenant = self._tenants.get(owner)
        if tenant is None or self._clock() - tenant.refused_at > _HINT_LASTS_S:
            return ""
        return tenant.refused_for

    def take_bytes(self, tenant: _Tenant, count: int) -> None:
        """Counts bytes of a body; see `Ticket`."""
        limit = self.limits.max_open_body_bytes
        if tenant.open_bytes + count > limit:
            message = (
                f"{tenant.open_bytes} bytes of your requests are being read, and this server's "
                f"limit (max_open_body_bytes) is {limit}."
            )
            raise self._refusal(tenant, message, 1.0)
        if self._open_bytes + count > self._max_bytes:
            raise OverCapacity(
                f"The server is reading {self._open_bytes} bytes of requests, its limit."
            )
        tenant.open_bytes += count
        self._open_bytes += count

    def leave(self, tenant: _Tenant, num_bytes: int) -> None:
        """Ends a request; see `Ticket`."""
        tenant.open_requests -= 1
        self.release_bytes(tenant, num_bytes)

    def release_bytes(self, tenant: _Tenant, num_bytes: int) -> None:
        """Removes bytes from the counters."""
        tenant.open_bytes -= num_bytes
        self._open_bytes -= num_bytes

    def _take_token(self, tenant: _Tenant, now: float) -> None:
        """Token bucket: one token per request, refilled at the limit's rate up to the burst."""
        rate, burst = self.limits.max_requests_per_s, max(1, self.limits.max_burst_requests)
        tenant.tokens = min(burst, tenant.tokens + rate * (now - tenant.counted_at))
        tenant.counted_at = now
        if tenant.tokens < 1:
            raise self._refusal(
                tenant,
                f"You send more than {rate} requests per second, this server's limit "
                "(max_requests_per_s).",
                max(0.1, (1 - tenant.tokens) / rate),
            )
        tenant.tokens -= 1

    def _refusal(self, tenant: _Tenant, message: str, retry_after_s: float) -> Busy:
        tenant.refused_at, tenant.refused_for = self._clock(), message
        self.num_refused += 1
        return Busy(message, retry_after_s=retry_after_s, code="rate-limited")


class ReleasedSlot:
    """Frees this request's slot for others during a long wait inside the block."""

    __slots__ = ("_ticket",)

    async def __aenter__(self) -> None:
        ticket = CURRENT_TICKET.get()
        self._ticket = ticket if ticket is not None and ticket.has_slot else None
        if self._ticket is not None:
            self._ticket.release_slot()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ticket is not None and kind is None:
            await self._ticket.acquire_slot()
