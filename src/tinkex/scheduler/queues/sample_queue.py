"""Sampling requests: which wait, and which run in which engine.

An engine batches continuously and shares its batch between the requests it has. The queue feeds
every engine slot, fairly between tenants, so that it has enough to fill its batches and never holds
thousands; how many one engine may have is for `running_limits`. A slot takes its part of the
requests whose sampler it has loaded, and any that have waited for long. Only those that were handed
over to a slot, and those quarantined in the slot whose engine they may have killed, wait for that
slot alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tinkex.fair_queue import FairShares
from tinkex.scheduler.queues.crash_quarantine import CrashQuarantine
from tinkex.scheduler.queues.running_limits import RunningLimits
from tinkex.scheduler.queues.slot_samples import QueuedSample, SlotSamples, WaitingLines
from tinkex.scheduler.queues.tenant_samples import TenantSamples
from tinkex.store.samples import Sample

__all__ = ["SampleQueue"]

_MAX_TAKEN = 64
"""Taken between two sampling steps: preparing one takes its time, and running ones wait."""

_LONG_S = 0.2
"""A request that has waited longer is taken by any slot, also by one that has to load for it."""

_SMALL_BATCH = 8
"""As many sequences in one batch cost little more than one: a slot takes them at any rate."""

_MAX_LOADED = 4096


class SampleQueue:
    """Requests that wait and requests that run. Thread-safe. `max_running` holds for each slot."""

    def __init__(
        self,
        *,
        max_running: int = 256,
        num_slots: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_running = max_running
        self._clock = clock
        self._waiting = WaitingLines()
        self._slots = [SlotSamples() for _ in range(num_slots)]
        self._loaded_anywhere: set[str] = set()  # sampling sessions on the base model
        self._shares = FairShares()
        self._all_may_run_at = -math.inf  # the latest `not_before`
        self._lock = threading.Lock()

    def add(self, queued: QueuedSample, *, first: bool = False) -> None:
        """Queues a request for any slot, or puts one back at the front."""
        with self._lock:
            queued.slot_id, queued.is_bound = None, False
            if queued.queued_at is None:
                queued.queued_at = self._clock()
            self._waiting.put(queued, first=first)

    def note_loaded(self, sampling_session_id: str, slot_id: int, *, is_base: bool) -> None:
        """Records that the slot's engine can sample for the session without loading anything;
        every engine can if it samples the base model."""
        with self._lock:
            loaded = self._loaded_anywhere if is_base else self._slots[slot_id].loaded
            if len(loaded) >= _MAX_LOADED:
                loaded.clear()
            loaded.add(sampling_session_id)

    def note_unloaded(self, sampling_session_id: str, slot_id: int) -> None:
        """Records that the slot's engine would have to load the session's sampler."""
        with self._lock:
            self._slots[slot_id].loaded.discard(sampling_session_id)

    def have_loaded(self, sampling_session_id: str) -> list[int]:
        """The slots that go first for the session, since they have nothing to load for it; none if
        all are alike."""
        with self._lock:
            if sampling_session_id in self._loaded_anywhere:
                return []
            return [n for n, slot in enumerate(self._slots) if sampling_session_id in slot.loaded]

    def set_open(self, slot_id: int, *, is_open: bool) -> None:
        """Has the slot take no more requests, or take them again."""
        with self._lock:
            slot = self._slots[slot_id]
            slot.is_open = is_open
            if is_open:
                for each in self._slots:
                    if not each.is_open:  # none was open when it was closed
                        self._move_quarantine(each, slot)
            else:
                taker = next((each for each in self._slots if each.is_open), slot)
                if taker is not slot:
                    self._move_quarantine(slot, taker)
        if not is_open:
            self.give_back(slot_id)

    def give_back(self, slot_id: int) -> None:
        """Has requests that were handed over to this slot wait for any slot again."""
        with self._lock:
            slot = self._slots[slot_id]
            bound, slot.handed_over = list(slot.handed_over.all()), WaitingLines()
            for queued in reversed(bound):
                queued.is_bound = False
                self._waiting.put(queued, first=True)

    def hand_over(self, queued: QueuedSample, slot_id: int) -> None:
        """Puts a request that another slot has taken at the front for this slot alone."""
        with self._lock:
            if self._take_back(queued):
                queued.is_bound = True
                self._slots[slot_id].handed_over.put(queued, first=True)

    def return_to_all(self, queued: QueuedSample, wait_s: float) -> None:
        """Puts a request that a slot has taken at the front for any slot; behind its tenant's
        others if it has to wait first."""
        with self._lock:
            if self._take_back(queued):
                queued.is_bound, queued.not_before = False, self._clock() + wait_s
                self._all_may_run_at = max(self._all_may_run_at, queued.not_before)
                self._waiting.put(queued, first=not wait_s)

    def _take_back(self, queued: QueuedSample) -> bool:
        """Whether the request was still with the slot that has taken it: else it was cancelled."""
        assert queued.slot_id is not None, "a slot has taken it"
        slot, queued.slot_id = self._slots[queued.slot_id], None
        return slot.running.pop(queued.sample.request_id, None) is not None

    def take_over(self, gone: Sequence[int], slot_id: int) -> None:
        """Gives a slot the retries of slots without an engine, and all slots the samples bound to
        those."""
        with self._lock:
            for each in gone:
                self._move_quarantine(self._slots[each], self._slots[slot_id])
        for each in gone:
            self.give_back(each)

    def _move_quarantine(self, giver: SlotSamples, taker: SlotSamples) -> None:
        if giver.quarantine:
            taker.quarantine.add(list(giver.quarantine.values()))
            giver.quarantine = CrashQuarantine()

    def quarantine(self, requests: list[QueuedSample], slot_id: int) -> None:
        """Has requests retried in the slot apart from all others: one of them may have made its
        engine fail."""
        with self._lock:
            for each in requests:
                each.slot_id = None
            slot = self._slots[slot_id]
            if not slot.is_open:  # it would wait until the slot is opened again
                slot = next((each for each in self._slots if each.is_open), slot)
            slot.quarantine.add(requests)

    def take(self, slot_id: int) -> list[QueuedSample]:
        """What the slot's engine should get now; it counts as running from here on."""
        with self._lock:
            slot = self._slots[slot_id]
            if slot.quarantine and slot.is_open:
                wave = {} if slot.running else slot.quarantine.next_wave()
                taken = list(wave.values())
            else:
                taken = self._take_waiting(slot)
            now = self._clock()
            for queued in taken:
                queued.slot_id, queued.taken_at = slot_id, now
                slot.running[queued.sample.request_id] = queued
            return taken

    def _take_waiting(self, slot: SlotSamples) -> list[QueuedSample]:
        owners = self._owners_waiting()
        self._shares.update(owners)
        limits = RunningLimits(slot.running.values(), owners, self._max_running)
        room, now = self._room(slot), self._clock()
        taken: list[QueuedSample] = []

        def fits(queued: QueuedSample) -> bool:
            has_room = len(taken) < room
            return self._is_for(queued, slot, now, has_room=has_room)

        filtered = None if self._has_all(slot, now) else fits
        while len(taken) < _MAX_TAKEN:
            next_of = limits.next_of_tenants(self._lines_for(slot), filtered)
            if not next_of:
                break
            costs = {owner: queued.sample.cost for owner, queued in next_of.items()}
            owner = self._shares.pick(costs)
            queued = next_of[owner]
            request_id = queued.sample.request_id
            if slot.handed_over.take_out(owner, request_id) is None:
                self._waiting.take_out(owner, request_id)
            limits.add(queued)
            taken.append(queued)
        return taken

    def _has_all(self, slot: SlotSamples, now: float) -> bool:
        """Whether every waiting request may run, and in this slot alone."""
        return len(self._slots) == 1 and slot.is_open and now >= self._all_may_run_at

    def _room(self, slot: SlotSamples) -> int:
        """How many more requests are the slot's part of what waits and runs."""
        num_open = sum(each.is_open for each in self._slots)
        total = self._waiting.count() + sum(len(each.running) for each in self._slots)
        return max(_SMALL_BATCH, -(-total // max(1, num_open))) - len(slot.running)

    def _is_for(
        self, queued: QueuedSample, slot: SlotSamples, now: float, *, has_room: bool
    ) -> bool:
        """Whether the slot should take a waiting request."""
        if queued.is_bound:
            return True
        if not slot.is_open or queued.not_before > now:
            return False
        if queued.queued_at is not None and now - queued.queued_at >= _LONG_S:
            return True
        return has_room and self._is_loaded(queued.sample.sampling_session_id, slot)

    def _is_loaded(self, sampling_session_id: str, slot: SlotSamples) -> bool:
        """Whether no other slot could sample for the session with less to load."""
        if sampling_session_id in slot.loaded or sampling_session_id in self._loaded_anywhere:
            return True
        return not any(sampling_session_id in each.loaded for each in self._slots)

    def _lines_for(self, slot: SlotSamples) -> Mapping[str, TenantSamples]:
        """Each tenant's requests for the slot: those handed over to it go first."""
        return {**self._waiting, **slot.handed_over} if slot.handed_over else self._waiting

    def _owners_waiting(self) -> set[str]:
        return set(self._waiting).union(*(slot.handed_over for slot in self._slots))

    def finish(self, request_id: str, slot_id: int) -> QueuedSample | None:
        """The slot's running request that just ended; None if it was cancelled meanwhile."""
        with self._lock:
            return self._slots[slot_id].running.pop(request_id, None)

    def cancel(self, request_id: str, owner: str) -> QueuedSample | None:
        """Takes the owner's request out of the queue; its `slot_id` says where it ran."""
        with self._lock:
            lines = [self._waiting, *(slot.handed_over for slot in self._slots)]
            waiting = (each.take_out(owner, request_id) for each in lines)
            held = (slot.quarantine.remove(request_id, owner) for slot in self._slots)
            found = next(filter(None, waiting), None) or next(filter(None, held), None)
            return found or self._cancel_running(request_id, owner)

    def _cancel_running(self, request_id: str, owner: str) -> QueuedSample | None:
        for slot in self._slots:
            running = slot.running.get(request_id)
            if running is not None and running.sample.owner == owner:
                slot.cancelled.append(request_id)
                return slot.running.pop(request_id)
        return None

    def drain_cancelled(self, slot_id: int) -> list[str]:
        """Requests cancelled while they ran in the slot, since the last call: its engine gives no
        result for them."""
        with self._lock:
            slot = self._slots[slot_id]
            cancelled, slot.cancelled = slot.cancelled, []
            return cancelled

    def interrupt(self, slot_id: int) -> list[QueuedSample]:
        """What was running when the slot's engine was lost."""
        with self._lock:
            slot = self._slots[slot_id]
            running, slot.running = list(slot.running.values()), {}
            slot.loaded.clear()
            return running

    def has_work(self, slot_id: int) -> bool:
        """Whether anything runs in the slot or waits for it."""
        with self._lock:
            slot = self._slots[slot_id]
            if slot.running or slot.handed_over or (slot.quarantine and slot.is_open):
                return True
            now = self._clock()
            if self._has_all(slot, now):
                return bool(self._waiting)
            return any(
                line.first(lambda each: self._is_for(each, slot, now, has_room=True)) is not None
                for line in self._waiting.values()
            )

    def num_running(self, slot_id: int) -> int:
        """How many requests run in the slot."""
        with self._lock:
            return len(self._slots[slot_id].running)

    def num_sequences(self, slot_id: int) -> int:
        """How many sequences the requests that run in the slot are to give."""
        with self._lock:
            return self._slots[slot_id].num_sequences()

    def waiting(self) -> tuple[int, int]:
        """How many requests wait to run in any engine, and their tokens."""
        with self._lock:
            costs = [each.sample.cost for each in self._waiting.all()]
            for slot in self._slots:
                costs += [each.sample.cost for each in slot.handed_over.all()]
                costs += [each.sample.cost for each in slot.quarantine.values()]
            return len(costs), sum(costs)

    def pending(self, owner: str) -> int:
        """How many of the owner's requests are not finished."""
        with self._lock:
            given = [each for slot in self._slots for each in slot.given()]
            num_given = sum(1 for each in given if each.sample.owner == owner)
            return num_given + sum(map(len, self._lines_of(owner)))

    def uses(self, sampling_session_id: str) -> bool:
        """Whether any unfinished request needs the sampling session."""
        with self._lock:
            return any(
                each.sample.sampling_session_id == sampling_session_id for each in self._all()
            )

    def sampling_sessions(self) -> set[str]:
        """The sampling sessions that have unfinished requests."""
        with self._lock:
            return {each.sample.sampling_session_id for each in self._all()}

    def older_than(self, before: float, sampling_session_ids: set[str]) -> list[Sample]:
        """Unfinished requests of these sampling sessions that came before this time."""
        with self._lock:
            return [
                each.sample
                for each in self._all()
                if each.sample.sampling_session_id in sampling_session_ids
                and each.sample.created_at < before
            ]

    def sampling_session_of(self, owner: str, request_id: str) -> str | None:
        """The sampling session of the owner's request, if that waits or runs."""
        with self._lock:
            running = (slot.running.get(request_id) for slot in self._slots)
            waiting = (line.get(request_id) for line in self._lines_of(owner))
            found = next(filter(None, running), None) or next(filter(None, waiting), None)
            if found is None or found.sample.owner != owner:
                return None
            return found.sample.sampling_session_id

    def is_waiting(self, owner: str, request_id: str) -> bool:
        """Whether the owner's request has not been given to an engine yet."""
        with self._lock:
            return any(request_id in line for line in self._lines_of(owner))

    def is_session_waiting(self, owner: str, sampling_session_id: str, for_s: float) -> bool:
        """Whether a request of the owner's sampling session has waited this long for an engine."""
        with self._lock:
            before = self._clock() - for_s
            return any(
                each.sample.sampling_session_id == sampling_session_id
                and each.queued_at is not None
                and each.queued_at <= before
                for line in self._lines_of(owner)
                for each in line
            )

    def has(self, request_id: str) -> bool:
        """Whether the request is not finished."""
        with self._lock:
            return any(each.sample.request_id == request_id for each in self._all())

    def unfinished(self) -> list[QueuedSample]:
        """All requests; those that run have the `slot_id` of where they do."""
        with self._lock:
            return list(self._all())

    def total(self) -> int:
        """How many requests are not finished."""
        with self._lock:
            of_slots = sum(
                len(slot.running) + len(slot.quarantine) + slot.handed_over.count()
                for slot in self._slots
            )
            return of_slots + self._waiting.count()

    def _lines_of(self, owner: str) -> Iterator[TenantSamples]:
        for lines in (self._waiting, *(slot.handed_over for slot in self._slots)):
            if owner in lines:
                yield lines[owner]

    def _all(self) -> Iterator[QueuedSample]:
        for slot in self._slots:
            yield from slot.given()
            yield from slot.handed_over.all()
        yield from self._waiting.all()
