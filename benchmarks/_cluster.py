"""A cluster on a simulated clock: one leader, its workers, and training runs that use them.

Discrete events. Planner, placement, moves and fair shares are the server's own code; the leader is
one interpreter that spends the measured CPU time on each operation, one after the other; a worker
is a device that is busy for as long as its call takes. Nothing random but the runs' lengths, by
seed. What is assumed of devices and runs stands in `simulate_cluster.py`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from tests.scheduler.work import operation

from tinkex.fair_queue import FairShares
from tinkex.scheduler.config import SchedulerConfig
from tinkex.scheduler.model_moves import ModelMoves
from tinkex.scheduler.placement import Placement
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import BatchLimits, Computed, Planner
from tinkex.scheduler.slot_load import SlotLoad
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.store.operations import Operation

TICK_S = 0.25  # how often a slot without work looks around
SLICES_PER_S = 20  # calls of a worker that samples
SNAPSHOT_AFTER_S = 0.8 * SchedulerConfig().snapshot_after_s


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one operation, by kind and size."""

    leader_s: float
    log_bytes: float = 0.0
    worker_bytes: float = 0.0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Assumed speeds of a worker."""

    train_tokens_per_s: float
    call_s: float  # beside its tokens
    seats: int  # sequences that it samples at once
    step_s: float  # of sampling, with one sequence
    step_seat_s: float  # more for each further one
    adapter_bytes: float
    state_bytes: float  # the adapter with its optimizer
    load_s: float  # to fetch and load an adapter


class Leader:
    """One interpreter: work waits for earlier work. `background` is the share of its time that goes
    to slots and sampling calls, independent of operations."""

    def __init__(self) -> None:
        self.background = 0.0
        self.busy_s = 0.0
        self.background_s = 0.0
        self._free_at = self._as_of = 0.0

    def set_background(self, now: float, share: float) -> None:
        """Sets the share of the leader's time that goes to other work."""
        self.background_s += self.background * (now - self._as_of)
        self.background, self._as_of = share, now

    def used_s(self, now: float) -> float:
        """Returns the seconds spent on operations until now."""
        return self.busy_s - max(0.0, self._free_at - now) * max(0.02, 1.0 - self.background)

    def spend(self, now: float, seconds: float) -> float:
        """Returns when work that arrives now is done."""
        self.busy_s += seconds
        speed = max(0.02, 1.0 - self.background)
        self._free_at = max(self._free_at, now) + seconds / speed
        return self._free_at


class Sampling(msgspec.Struct):
    """One sampling request."""

    tenant: str
    model_id: str
    version: int
    num_samples: int
    tokens: int
    call: Call
    asked_at: float
    done: Callable[[float], None]


class Cluster:
    """Workers that train, workers that sample, and their leader.

    `idle_share` is the leader's time that all slots take while idle, `slot_s` what so many slots
    add to each operation, `slice_s` what a sampling call costs it. Without `has_moves`
    models stay where they are.
    """

    def __init__(
        self,
        device: Device,
        *,
        trainers: int,
        samplers: int,
        seed: int = 0,
        idle_share: float = 0.0,
        slot_s: float = 0.0,
        slice_s: float = 0.0,
        slices_per_s: float = SLICES_PER_S,
        max_operations: int = 64,
        has_moves: bool = True,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.device = device
        self.leader = Leader()
        self.started: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.waited_s: dict[str, list[float]] = {"train": [], "sample": []}
        self.put_bytes = self.get_bytes = self.log_bytes = self.worker_bytes = 0.0
        self.train_busy_s = [0.0] * trainers
        self.seat_s = [0.0] * samplers
        self.num_moves = 0
        self._idle_share, self._slot_s = idle_share, slot_s
        self._slice_s, self._slices_per_s = slice_s, slices_per_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._planner = Planner(BatchLimits(max_operations=max_operations))
        self._placement = Placement([SlotLoad() for _ in range(trainers)])
        self._wakeups = SlotWakeups(max(1, trainers))
        shared = SimpleNamespace(
            planner=self._planner,
            placement=self._placement,
            sample_queue=SimpleNamespace(take_over=lambda *_: None, give_back=lambda *_: None),
            wakeup=self._wakeups,
        )
        self._moves = [
            ModelMoves(n, cast("Any", shared), cast("Any", None)) for n in range(trainers)
        ]
        self._is_running = [False] * trainers
        self._computes_since: list[float | None] = [None] * trainers
        self._held_until = [0.0] * trainers  # while it gives or takes a model
        self._dirty_s: list[Counter[str]] = [Counter() for _ in range(trainers)]
        self._next_seq: Counter[str] = Counter()
        self._calls: dict[str, tuple[Call, float, Callable[[float], None]]] = {}
        self._lines: dict[str, deque[Sampling]] = {}
        self._shares = FairShares()
        self._seats = [0] * samplers
        self._seats_since = [0.0] * samplers
        self._loaded: list[dict[str, int]] = [{} for _ in range(samplers)]
        self._has_moves = has_moves
        for slot_id in range(trainers if has_moves else 0):
            self.at(TICK_S * slot_id / max(1, trainers), lambda s=slot_id: self._tick(s))

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedules an event."""
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def run(self, until: float) -> None:
        """Runs the simulation for some seconds."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def computed_s(self) -> float:
        """Returns the seconds that all trainers have computed, including running calls."""
        running = (self.now - since for since in self._computes_since if since is not None)
        return sum(self.train_busy_s) + sum(running)

    def sampled_s(self) -> float:
        """Returns the seconds for which all seats were taken."""
        for slot_id in range(len(self._seats)):
            self._change_seats(slot_id, 0)
        return sum(self.seat_s)

    def add_model(self, model_id: str, tenant: str, slot_id: int) -> None:
        """Adds a model that is already loaded on this worker."""
        self._planner.open(ModelQueue(model_id, tenant, "base"))
        first = self._placement.assign(model_id, 0.0)
        assert first is not None, "there are trainers"
        if first != slot_id:
            self._placement.move(model_id, first, slot_id)

    def train(
        self, model_id: str, tenant: str, kind: str, tokens: int, call: Call,
        done: Callable[[float], None],
    ) -> None:  # fmt: skip
        """Sends an operation; `done` gets the time at which its result is ready."""
        self.started["train"] += 1
        each = operation(
            model_id, self._next_seq[model_id], kind=kind, cost=max(1, tokens), owner=tenant
        )
        self._next_seq[model_id] += 1
        self._calls[each.request_id] = call, self.now, done
        logged_at = self._spend(call)
        self.at(logged_at, lambda: self._queue(each))

    def sample(self, request: Sampling) -> None:
        """Sends a sampling request."""
        self.started["sample"] += 1
        logged_at = self._spend(request.call)
        self.at(logged_at, lambda: self._queue_sample(request))

    def _spend(self, call: Call) -> float:
        """Spends half of an operation's leader time, at its arrival or at its completion."""
        self.log_bytes += call.log_bytes / 2
        self.worker_bytes += call.worker_bytes / 2
        active = sum(1 for each in self._seats if each)
        share = self._idle_share + active * self._slices_per_s * self._slice_s
        self.leader.set_background(self.now, share)
        return self.leader.spend(self.now, (call.leader_s + self._slot_s) / 2)

    # Training ---------------------------------------------------------------------------------

    def _queue(self, each: Operation) -> None:
        self._planner.add(each, self.now)
        slot_id = self._placement.assign(each.model_id, self.now)
        assert slot_id is not None, "there are trainers"
        self._work(slot_id)

    def _tick(self, slot_id: int) -> None:
        self._work(slot_id)
        self.at(self.now + TICK_S, lambda: self._tick(slot_id))

    def _work(self, slot_id: int) -> None:
        if self._is_running[slot_id]:
            return
        self._move_out(slot_id)
        if self._held_until[slot_id] > self.now:
            return  # the next tick looks again
        models = self._placement.models_of(slot_id)
        has_ready = self._planner.has_ready(models)
        batch = self._planner.next_batch(self.now, models) if has_ready else []
        if self._has_moves:
            with self._wakeups:
                self._moves[slot_id].seek(self.now, is_idle=not batch)
        if not batch:
            return
        self._is_running[slot_id] = True
        load = self._placement.loads[slot_id]
        load.begin(self.now)
        load.in_use = {each.model_id for each in batch}
        tokens = sum(each.cost for each in batch if each.kind == "forward_backward")
        seconds = self.device.call_s + tokens / self.device.train_tokens_per_s
        began = self._computes_since[slot_id] = self.now
        self.at(self.now + seconds, lambda: self._computed(slot_id, batch, began))

    def _computed(self, slot_id: int, batch: list[Operation], began: float) -> None:
        seconds = self.now - began
        self.train_busy_s[slot_id] += seconds
        self._computes_since[slot_id] = None
        self._planner.finished(batch, [Computed(operations=batch, busy_seconds=seconds)])
        self._snapshot(slot_id, batch, seconds)
        stored_at = self.now
        for each in batch:
            call, asked_at, done = self._calls.pop(each.request_id)
            stored_at = self._spend(call)
            self.at(stored_at, lambda a=asked_at, d=done: self._answer("train", a, seconds, d))
        self.at(stored_at, lambda: self._free(slot_id))

    def _free(self, slot_id: int) -> None:
        self._is_running[slot_id] = False
        load = self._placement.loads[slot_id]
        load.end(self.now)
        load.in_use = None
        self._work(slot_id)

    def _snapshot(self, slot_id: int, batch: list[Operation], seconds: float) -> None:
        """Recovery snapshots, as `adapters/snapshots.py` takes them by time."""
        dirty = self._dirty_s[slot_id]
        for each in batch:
            dirty[each.model_id] += seconds / len(batch)
        if sum(dirty.values()) >= SNAPSHOT_AFTER_S:
            del dirty[max(dirty, key=lambda each: dirty[each])]
            self.put_bytes += self.device.state_bytes

    def _move_out(self, slot_id: int) -> None:
        for model_id, taker in self._placement.requested_moves(slot_id).items():
            self._placement.move(model_id, slot_id, taker)
            self._dirty_s[slot_id].pop(model_id, None)
            self._placement.cost.record(self.device.load_s)
            self.num_moves += 1
            self.put_bytes += self.device.state_bytes
            self.get_bytes += self.device.state_bytes
            for each in (slot_id, taker):
                until = max(self._held_until[each], self.now) + self.device.load_s
                self._held_until[each] = until

    # Sampling ---------------------------------------------------------------------------------

    def _queue_sample(self, request: Sampling) -> None:
        self._lines.setdefault(request.tenant, deque()).append(request)
        self._seat()

    def _seat(self) -> None:
        """Gives free seats to tenants by their shares."""
        while self._lines:
            slot_id = min(range(len(self._seats)), key=self._seats.__getitem__)
            self._shares.update(self._lines)
            heads = {t: float(q[0].num_samples * q[0].tokens) for t, q in self._lines.items()}
            tenant = self._shares.next(heads)
            request = self._lines[tenant][0]
            if self._seats[slot_id] + request.num_samples > self.device.seats:
                return
            self._shares.serve(tenant, heads[tenant])
            self._lines[tenant].popleft()
            if not self._lines[tenant]:
                del self._lines[tenant]
            self._begin_sampling(self._best_slot(request, slot_id), request)

    def _best_slot(self, request: Sampling, emptiest: int) -> int:
        """Returns a worker that has the weights and free seats; else the one with
        most free seats."""
        fits = self.device.seats - request.num_samples
        loaded = [
            n
            for n, versions in enumerate(self._loaded)
            if versions.get(request.model_id) == request.version and self._seats[n] <= fits
        ]
        return min(loaded, key=self._seats.__getitem__) if loaded else emptiest

    def _begin_sampling(self, slot_id: int, request: Sampling) -> None:
        device = self.device
        seconds = 0.0
        if self._loaded[slot_id].get(request.model_id) != request.version:
            self._loaded[slot_id][request.model_id] = request.version
            self.get_bytes += device.adapter_bytes
            seconds += device.load_s
        self._change_seats(slot_id, request.num_samples)
        step_s = device.step_s + device.step_seat_s * self._seats[slot_id]
        seconds += request.tokens * step_s
        self.at(self.now + seconds, lambda: self._sampled(slot_id, request, seconds))

    def _change_seats(self, slot_id: int, more: int) -> None:
        self.seat_s[slot_id] += self._seats[slot_id] * (self.now - self._seats_since[slot_id])
        self._seats_since[slot_id] = self.now
        self._seats[slot_id] += more

    def _sampled(self, slot_id: int, request: Sampling, seconds: float) -> None:
        self._change_seats(slot_id, -request.num_samples)
        stored_at = self._spend(request.call)
        self.at(
            stored_at,
            lambda: self._answer("sample", request.asked_at, seconds, request.done),
        )
        self._seat()

    def _answer(
        self, kind: str, asked_at: float, seconds: float, done: Callable[[float], None]
    ) -> None:
        self.finished[kind] += 1
        self.waited_s[kind].append(self.now - asked_at - seconds)
        done(self.now)
