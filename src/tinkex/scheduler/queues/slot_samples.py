"""The sampling requests of one engine slot, and lines of waiting ones by tenant."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tinkex.scheduler.queues.crash_quarantine import CrashQuarantine
from tinkex.scheduler.queues.tenant_samples import TenantSamples
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest

__all__ = ["QueuedSample", "SlotSamples", "WaitingLines"]


class QueuedSample(msgspec.Struct):
    """A sampling request, decoded if it came since the last start; how often an engine failed,
    and how often one hung, while it had the request."""

    sample: Sample
    request: SampleRequest | None = None
    failures: int = 0
    outside_losses: int = 0
    slot_id: int | None = None  # where it runs
    is_bound: bool = False  # whether it waits for one slot alone
    queued_at: float | None = None  # when it came to the queue
    taken_at: float = 0.0  # when a slot took it last
    not_before: float = 0.0  # no slot takes it earlier
    joined_at: float = 0.0  # when it joined those that run, by the clock of `sampling_time`
    engine_s: float = 0.0


class SlotSamples:
    """The requests that belong to one engine slot."""

    def __init__(self) -> None:
        self.running: dict[str, QueuedSample] = {}
        self.quarantine = CrashQuarantine()
        self.handed_over = WaitingLines()
        self.cancelled: list[str] = []  # while they ran
        self.loaded: set[str] = set()  # sampling sessions whose sampler its engine has
        self.is_open = True

    def num_sequences(self) -> int:
        """How many sequences its engine is to sample."""
        return sum(queued.sample.num_samples for queued in self.running.values())

    def given(self) -> Iterator[QueuedSample]:
        """Requests that the engine has or had when it failed."""
        yield from self.running.values()
        yield from self.quarantine.values()


class WaitingLines(dict[str, TenantSamples]):
    """Waiting requests by tenant; tenants without any are left out."""

    def put(self, queued: QueuedSample, *, first: bool) -> None:
        self.setdefault(queued.sample.owner, TenantSamples()).add(queued, first=first)

    def take_out(self, owner: str, request_id: str) -> QueuedSample | None:
        line = self.get(owner)
        queued = None if line is None else line.remove(request_id)
        if queued is not None and not line:
            del self[owner]
        return queued

    def count(self) -> int:
        return sum(len(line) for line in self.values())

    def all(self) -> Iterator[QueuedSample]:
        for line in self.values():
            yield from line
