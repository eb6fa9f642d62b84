"""What happens to runs, for those who watch: which runs changed, and their operations as they pass.

A stream holds names of changed runs and a short line of operations, never results or points: its
reader reads those from the store. So a slow reader costs no memory; what it misses is `lost`.
Everything runs on the event loop, except `note_operations`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from tinkex.server.errors import Busy
from tinkex.store.operations import Operation

__all__ = ["LiveFeed", "LiveStream", "OperationEvent", "OperationState"]

OperationState = Literal["queued", "running", "done", "failed"]

MAX_STREAMS_PER_OWNER = 32
_MAX_CHANGED = 1000
_MAX_OPERATIONS = 256


class OperationEvent(msgspec.Struct, frozen=True):
    """One operation of a run, and what has become of it."""

    run: str
    kind: str
    seq_id: int
    state: OperationState
    time: float


class LiveStream:
    """Changes that were not sent to one reader yet."""

    def __init__(self, watched: frozenset[str]) -> None:
        self.watched = watched
        self.changed: set[str] = set()
        self.operations: deque[OperationEvent] = deque()
        self.is_lost = False
        self.has_news = asyncio.Event()

    def note_run(self, run_id: str) -> None:
        """Notes that a run has changed."""
        if len(self.changed) < _MAX_CHANGED:
            self.changed.add(run_id)
        else:
            self.is_lost = True
        self.has_news.set()

    def note_operation(self, event: OperationEvent) -> None:
        """Notes an operation of a watched run."""
        self.operations.append(event)
        if len(self.operations) > _MAX_OPERATIONS:
            self.operations.popleft()
            self.is_lost = True

    def take(self) -> tuple[set[str], list[OperationEvent], bool]:
        """The changed runs, the operations, and whether some were lost; then there are none."""
        taken = self.changed, list(self.operations), self.is_lost
        self.changed, self.operations, self.is_lost = set(), deque(), False
        self.has_news.clear()
        return taken


class LiveFeed:
    """The streams of all owners."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, set[LiveStream]] = {}
        self.is_closed = False

    @contextmanager
    def open(self, owner: str, watched: frozenset[str]) -> Iterator[LiveStream]:
        """A stream of what happens to the owner's runs while it is open.

        Raises:
            Busy: the owner has too many open.
        """
        streams = self._streams.setdefault(owner, set())
        if len(streams) >= MAX_STREAMS_PER_OWNER:
            raise Busy(f"You have {len(streams)} live streams open, this server's limit.")
        stream = LiveStream(watched)
        streams.add(stream)
        try:
            yield stream
        finally:
            streams.discard(stream)
            if not streams and self._streams.get(owner) is streams:
                del self._streams[owner]

    def note_operations(self, operations: list[Operation], state: OperationState) -> None:
        """Notes what has become of operations."""
        if self._streams and not self.is_closed:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._spread, operations, state, time.time())

    def note_run(self, owner: str, run_id: str) -> None:
        """Notes that the owner's run has another name, other tags or points."""
        for stream in self._streams.get(owner, ()):
            stream.note_run(run_id)

    def close(self) -> None:
        """Ends every stream."""
        self.is_closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.has_news.set()

    def _spread(self, operations: list[Operation], state: OperationState, now: float) -> None:
        for each in operations:
            for stream in self._streams.get(each.owner, ()):
                stream.note_run(each.model_id)
                if each.model_id in stream.watched:
                    event = OperationEvent(each.model_id, each.kind, each.seq_id, state, now)
                    stream.note_operation(event)
