"""Choice of the blocks that are evicted when the KV cache is full.

Parked sequences are evicted first, those parked longest before others; then partly computed
prompts; then running sequences, the youngest first. Each tenant has a right to an equal number of
blocks, and so, roughly, has each request of a tenant: no blocks are taken from a tenant that has
fewer than the one that needs them. An evicted sequence returns to the queue with its tokens, and
its prompt is computed again except for blocks still in the cache.

Two rules limit recomputation. A recomputed sequence is not evicted until it has written as many
tokens as were recomputed. And it returns only if the cache has space for its tenant's running
sequences to grow by a block each.

A tenant without any blocks need not wait for others to end. It gets those of any running sequence;
of a recomputed sequence and of an unfinished prompt only if their tenant has more than it needs:
otherwise two tenants that do not fit together would evict each other without progress.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import blocks_for
from tinkex.engine.sampling.prefill_queue import PrefillQueue
from tinkex.engine.sampling.seating import Seating
from tinkex.engine.sampling.state import PendingPrefix, RunningSequence, SampleJob

__all__ = ["KvEviction"]

_Holder = RunningSequence | PendingPrefix


@dataclass(slots=True)
class _Held:
    """The blocks of tenants and of requests; one that several share is counted once for each."""

    by_tenant: dict[str, set[int]] = field(default_factory=dict)
    by_request: dict[str, set[int]] = field(default_factory=dict)
    most_of_tenants: int = 0
    most_of_requests: dict[str, int] = field(default_factory=dict)  # by tenant
    order: list[_Holder] = field(default_factory=list)  # whose blocks are taken first
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)  # see `_victims`

    def add(self, holder: _Holder) -> None:
        request = holder.job.request
        scope, name = request.cache_scope, request.request_id
        of_tenant = self.by_tenant.setdefault(scope, set())
        of_request = self.by_request.setdefault(name, set())
        of_tenant.update(holder.blocks)
        of_request.update(holder.blocks)
        self.most_of_tenants = max(self.most_of_tenants, len(of_tenant))
        self.most_of_requests[scope] = max(self.most_of_requests.get(scope, 0), len(of_request))

    def tenant(self, job: SampleJob) -> int:
        return len(self.by_tenant.get(job.request.cache_scope, ()))

    def request(self, job: SampleJob) -> int:
        return len(self.by_request.get(job.request.request_id, ()))

    def has_more_than(self, job: SampleJob) -> bool:
        """Whether the tenant, or a request of the same tenant, has more blocks than
        the job would have."""
        whole, own = _whole(job), self.most_of_requests.get(job.scope, 0)
        return self.most_of_tenants > self.tenant(job) + whole or own > self.request(job) + whole


class KvEviction:
    """Finds blocks for sequences that grow and for prompts that begin."""

    def __init__(self, pool: BlockPool, seating: Seating, prefill_queue: PrefillQueue) -> None:
        self._pool, self._seating, self._prefill_queue = pool, seating, prefill_queue
        self._held: _Held | None = None  # as of now, if it was counted
        self._held_before: _Held | None = None  # when this step first chose who may pass

    def new_step(self) -> None:
        """Drops the counts of the last step."""
        self._held = self._held_before = None

    def free_for(self, sequence: RunningSequence) -> None:
        """Evicts blocks so that a running sequence can grow; they may be its own."""
        held = self._count()
        job, mine = sequence.job, held.tenant(sequence.job)

        def may_lose(holder: _Holder) -> bool:
            if holder.job.scope != job.scope:
                return held.tenant(holder.job) > mine
            # An approximation is good enough: else the longest of many alike would lose its blocks.
            return 2 * held.request(holder.job) >= held.request(job)

        self._evict(next(each for each in held.order if may_lose(each)))

    def take_for(self, prefix: PendingPrefix, count: int) -> list[int] | None:
        """Returns blocks for a prompt that begins; None if it must wait for them."""
        if self._pool.num_available < count:
            victims = self._victims(prefix, count - self._pool.num_available)
            for holder in victims or ():
                self._evict(holder)
        elif prefix.is_restart and self._pool.num_available < count + self._num_running(
            prefix.scope
        ):
            return None
        taken = self._pool.take(count)
        if taken is not None:
            self._held = None
        return taken

    def may_pass(self, prefix: PendingPrefix, waiting: PendingPrefix) -> bool:
        """Whether the prefix's request would still have fewer blocks than the waiting one
        of its tenant."""
        if prefix.job is waiting.job:
            return False
        if self._held_before is None:
            self._held_before = self._count()
        held = self._held_before
        return held.request(waiting.job) > held.request(prefix.job) + _whole(prefix.job)

    def _victims(self, prefix: PendingPrefix, count: int) -> list[_Holder] | None:
        """Returns the fewest holders whose eviction frees so many blocks for the prefix; None if
        there are not enough. A refusal holds for all larger requests until blocks are freed."""
        held, job = self._count(), prefix.job
        is_first, whole = not held.tenant(job), _whole(job)
        asker = "" if is_first else job.request.request_id
        refused = held.refused.get(asker)
        if refused is not None and count >= refused[0] and whole >= refused[1]:
            return None
        chosen = self._choose(prefix, count, held)
        if chosen is None:
            held.refused[asker] = (count, whole)
        return chosen

    def _choose(self, prefix: PendingPrefix, count: int, held: _Held) -> list[_Holder] | None:
        order, freed = held.order, _Freed(self._pool)
        if not held.tenant(prefix.job):
            order = sorted(order, key=_is_protected)
        elif not held.has_more_than(prefix.job):
            return None
        for holder in order:
            if isinstance(holder, PendingPrefix) and self._prefill_queue.is_in_step(holder):
                continue
            if _may_lose(holder, prefix.job, held, freed):
                freed.add(holder)
            if freed.count >= count:
                return freed.needed_for(count)
        return None

    def _count(self) -> _Held:
        """Returns the blocks held now; counted once, until blocks change owners."""
        if self._held is None:
            self._held = held = _Held()
            for holder in self._holders():
                held.add(holder)
            held.order = self._in_order(held)
        return self._held

    def _in_order(self, held: _Held) -> list[_Holder]:
        """Returns everything that holds blocks: parked ones, then the rest, those of the tenant
        with most blocks first."""
        running = sorted(self._seating.running, key=lambda each: each.number, reverse=True)
        rest: list[_Holder] = [*self._prefill_queue.begun(), *running]
        rest.sort(key=lambda each: -held.tenant(each.job))
        return [*sorted(self._seating.parked, key=lambda each: -held.tenant(each.job)), *rest]

    def _holders(self) -> list[_Holder]:
        return [*self._seating.sequences(), *self._prefill_queue.begun()]

    def _num_running(self, scope: str) -> int:
        return sum(each.job.scope == scope for each in self._seating.running)

    def _evict(self, holder: _Holder) -> None:
        self._held = None
        if isinstance(holder, PendingPrefix):
            self._prefill_queue.stop(holder)
            return
        self._seating.remove(holder)
        self._pool.release(holder.blocks)
        holder.blocks = []
        self._prefill_queue.put_back(PendingPrefix(holder.job, [holder]))


class _Freed:
    """The holders to evict, and the blocks this frees: those with no other owner."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._holders: list[_Holder] = []
        self._num_released: Counter[int] = Counter()  # owners that release the block, by block
        self.count = 0
        self.by_tenant: Counter[str] = Counter()
        self.by_request: Counter[str] = Counter()

    def add(self, holder: _Holder) -> None:
        """Adds a holder to be evicted."""
        self._holders.append(holder)
        self._num_released.update(holder.blocks)
        num_freed = self._num_freed(holder)
        self.count += num_freed
        self.by_tenant[holder.job.scope] += num_freed
        self.by_request[holder.job.request.request_id] += num_freed

    def needed_for(self, count: int) -> list[_Holder]:
        """Returns the holders without those whose blocks are not needed; the last
        are spared first."""
        for holder in reversed(list(self._holders)):
            num_freed = self._num_freed(holder)
            if self.count - num_freed >= count:
                self._holders.remove(holder)
                self._num_released.subtract(holder.blocks)
                self.count -= num_freed
        return self._holders

    def _num_freed(self, holder: _Holder) -> int:
        """Returns how many of the holder's blocks are free once all of these are evicted."""
        return sum(
            self._num_released[each] == self._pool.num_owners(each) for each in holder.blocks
        )


def _may_lose(holder: _Holder, job: SampleJob, held: _Held, freed: _Freed) -> bool:
    """Whether a prompt of the job may take the holder's blocks, beside those freed for it."""
    whole, name = _whole(job), holder.job.request.request_id
    if holder.job.scope == job.scope:
        left = held.request(holder.job) - freed.by_request[name]
        has_more = name != job.request.request_id and left > held.request(job) + whole
    else:
        left = held.tenant(holder.job) - freed.by_tenant[holder.job.scope]
        has_more = left > held.tenant(job) + whole
    if held.tenant(job):
        return has_more and not _is_protected(holder)
    return has_more or (isinstance(holder, RunningSequence) and not holder.is_protected)


def _is_protected(holder: _Holder) -> bool:
    return isinstance(holder, RunningSequence) and holder.is_protected


def _whole(job: SampleJob) -> int:
    """Returns the number of blocks of one sequence of the job at its end."""
    return blocks_for(int(job.request.tokens.size) + job.max_new - 1)
