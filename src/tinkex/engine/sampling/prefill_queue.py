"""Prompts that wait and partly computed ones: which tokens of which ones the next step computes.

In the order of `prefill_order`, within a budget of tokens: large while nothing is being written,
small beside sequences that are, so that a long prompt does not hold them up; a prompt beyond it is
taken in parts. A token after a long beginning counts for several, as attention to that takes time
too (`SamplerLimits.attention_tokens`), so parts become shorter as a prompt goes on. While quick
requests come, those that are done with a short prompt, steps are shorter still, for such a request
waits for the step that runs when it comes. A request that is done with its prompt is computed whole
where it can be, with blocks or without, and in every second step that completes one its tenant's
other prompts wait. Blocks that hold the same beginning already are used again. A prompt whose next
block is just being computed for another one waits a step and finds it done. How many sequences of a
request may begin is not decided here (`Seating`), nor whose blocks are taken back for a prompt when
the cache is full (`KvEviction`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sampling.prefill_order import PrefillOrder
from tinkex.engine.sampling.seat_shares import SeatClaim
from tinkex.engine.sampling.state import PendingPrefix, PrefillChunk

__all__ = ["BlockSource", "PrefillQueue", "SamplerLimits"]


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """Limits of what runs at once."""

    cache_tokens: int
    prefill_tokens: int = 1024  # of prompts in a step of their own
    beside_tokens: int = 512  # of prompts in a step that also writes
    short_tokens: int = 64  # the same while quick requests come, but for what is done then
    quick_tokens: int = 256  # of a quick request
    max_sequences: int = 256
    stack_bytes: int = 2**29  # for adapters side by side
    attention_tokens: float = math.inf  # before a token, for which it counts twice
    reuses_prompts: bool = True  # else no bit of an answer depends on earlier requests

    def token_cost(self, start: int) -> float:
        """Returns the cost of a prompt token with this many tokens before it."""
        return 1.0 + start / self.attention_tokens


_SHORT_STEPS = 32
"""Number of steps that are short after a quick request has arrived."""


class BlockSource(Protocol):
    """Source of the blocks of a prompt."""

    def take_for(self, prefix: PendingPrefix, count: int) -> list[int] | None:
        """Returns blocks for a prompt that begins; None if it must wait for them."""
        ...

    def may_pass(self, prefix: PendingPrefix, waiting: PendingPrefix) -> bool:
        """Whether the prefix may get blocks before another of its tenant that waits for them."""
        ...


class PrefillQueue:
    """Prefixes in the order of `PrefillOrder`. Without a pool (no cache) each is computed whole."""

    def __init__(self, limits: SamplerLimits, pool: BlockPool | None) -> None:
        self._limits, self._pool = limits, pool
        self._order = PrefillOrder()
        self._begun: set[PendingPrefix] = set()  # those that are partly computed
        self._in_step: set[PendingPrefix] = set()  # those with chunks in the step that runs
        self._num_short = 0  # how many steps more are to be short
        self._has_held = False  # whether the last step held others up for one that it completed

    def __len__(self) -> int:
        return len(self._order)

    def add(self, prefix: PendingPrefix) -> None:
        """Adds a new prefix in its place."""
        self._order.add(prefix)
        if prefix.ends_with_prompt and len(prefix.tokens) <= self._limits.quick_tokens:
            self._num_short = _SHORT_STEPS

    def put_back(self, prefix: PendingPrefix) -> None:
        """Puts a preempted prefix back in its place."""
        self._order.put_back(prefix)

    def has_any_of(self, scopes: Container[str]) -> bool:
        """Whether a prefix of these tenants waits or is partly computed."""
        return self._order.has_any_of(scopes)

    def num_tokens(self, at_seat_limit: Container[str]) -> Counter[str]:
        """Returns the tokens that could be computed for each tenant; tenants in `at_seat_limit`
        begin nothing that needs a seat."""
        count: Counter[str] = Counter()
        for prefix in self._order.prefixes():
            needs_seat = prefix not in self._begun and not prefix.ends_with_prompt
            if not (needs_seat and prefix.scope in at_seat_limit):
                count[prefix.scope] += len(prefix.tokens) - prefix.done
        return count

    def claims(self) -> dict[str, SeatClaim]:
        """The seats that sequences of each request will need once their prompt is computed; those
        partly computed count as held. Requests that end with their prompt need none."""
        claims: dict[str, SeatClaim] = {}
        for prefix in self._order.prefixes():
            if prefix.ends_with_prompt:
                continue
            claim = claims.setdefault(prefix.job.request.request_id, SeatClaim(prefix.scope))
            claim.wanted += len(prefix.sequences)
            claim.held += len(prefix.sequences) if prefix in self._begun else 0
        return claims

    def begun(self) -> list[PendingPrefix]:
        """The partly computed prefixes, the last due first."""
        return sorted(self._begun, key=lambda each: each.due, reverse=True)

    def is_in_step(self, prefix: PendingPrefix) -> bool:
        """Whether a part of the prefix is computed in this step."""
        return prefix in self._in_step

    def prefixes(self) -> list[PendingPrefix]:
        """All prefixes."""
        return self._order.prefixes()

    def remove(self, request_ids: Container[str]) -> None:
        """Drops the prefixes of these requests."""
        for prefix in self.prefixes():
            if prefix.job.request.request_id in request_ids:
                self._order.remove(prefix)
                self.stop(prefix)

    def next_parts(
        self,
        num_running: int,
        seats: Mapping[str, int],
        blocks: BlockSource | None,
        tenants: Container[str] | None = None,
    ) -> list[PrefillChunk]:
        """Returns the parts of these tenants' prompts to compute now (None: of all). Every part is
        computed before the next call.

        `seats` says how many sequences of each request may begin; `blocks` is None without a pool.
        """
        batch = self._new_batch(num_running, seats, blocks)
        held = set() if self._has_held else self._scopes_done_with(batch)
        self._has_held = False
        self._in_step = set()
        for prefix in self._order.in_fair_order(lambda each: self._can_go_on(each, seats), tenants):
            if batch.tokens_left <= 0:
                break
            if prefix.scope in held and not batch.would_complete(prefix):
                self._has_held = True
                continue
            chosen = self._choose(prefix, batch, num_running)
            num_tokens = 0 if chosen is None else batch.add(chosen)
            if chosen is not None and num_tokens:
                self._in_step.add(chosen)
                self._order.charge(prefix, batch.cost(chosen, num_tokens))
        return batch.parts

    def _can_go_on(self, prefix: PendingPrefix, seats: Mapping[str, int]) -> bool:
        """Whether the prefix is partly computed, needs no seat, or may have one."""
        has_seat = prefix in self._begun or prefix.ends_with_prompt
        return has_seat or seats.get(prefix.job.request.request_id, 0) > 0

    def _new_batch(
        self, num_running: int, seats: Mapping[str, int], blocks: BlockSource | None
    ) -> _Batch:
        limits = self._limits
        budget = most = limits.beside_tokens if num_running else limits.prefill_tokens
        if num_running and self._num_short:
            self._num_short -= 1
            budget = min(most, limits.short_tokens)
        return _Batch(limits, budget, most, seats, blocks)

    def _scopes_done_with(self, batch: _Batch) -> set[str]:
        """Returns the scopes with requests that this step could complete."""
        return {prefix.scope for prefix in self._order.prefixes() if batch.would_complete(prefix)}

    def finish_parts(self, parts: list[PrefillChunk]) -> list[PendingPrefix]:
        """Records that the parts were computed; complete prefixes leave the queue."""
        for part in parts:
            prefix = part.prefix
            prefix.done = part.end
            if self._pool is not None and prefix.blocks:
                for i in range(part.start // BLOCK_TOKENS, part.end // BLOCK_TOKENS):
                    self._pool.remember(prefix.blocks[i], prefix.keys[i])
        self._in_step = set()
        complete = [part.prefix for part in parts if part.prefix.is_complete]
        for prefix in complete:
            self._order.remove(prefix)
            self._begun.discard(prefix)
        return complete

    def clear(self) -> None:
        """Drops all prefixes."""
        for prefix in self.prefixes():
            self.stop(prefix)
        self._order.clear()

    def give_back(self, prefix: PendingPrefix) -> None:
        """Frees the prefix's blocks and drops what was computed."""
        if self._pool is not None:
            self._pool.release(prefix.blocks)
        prefix.start_over()

    def stop(self, prefix: PendingPrefix) -> None:
        """Preempts a partly computed prefix; it begins anew later."""
        if prefix in self._begun:
            self._begun.discard(prefix)
            self.give_back(prefix)

    def _find(self, prefix: PendingPrefix) -> list[int]:
        """Returns the cached blocks that hold the prefix's beginning."""
        if self._pool is None or not prefix.most_blocks_skipped:
            return []
        return self._pool.find(prefix.keys[: prefix.most_blocks_skipped])

    def _choose(
        self, prefix: PendingPrefix, batch: _Batch, num_running: int
    ) -> PendingPrefix | None:
        """Returns the prefix, or a part of it, if it is to be computed in this step."""
        if prefix in self._begun:
            self._skip_found(prefix)
            return None if batch.computes(prefix, prefix.done // BLOCK_TOKENS) else prefix
        found = self._find(prefix)
        if batch.computes(prefix, len(found)):
            return None
        if not batch.seats_for(prefix) or not batch.has_room(prefix, len(found)):
            return None
        if batch.may_begin(prefix):
            begun = self._begin(prefix, found, batch, num_running)
            if begun is not None:
                return begun
            batch.waiting.setdefault(prefix.scope, prefix)
        # Done with this step it keeps neither a seat nor blocks, so it takes none from others.
        completes = batch.would_complete(prefix)
        return self._half_way(prefix, len(prefix.sequences), batch) if completes else None

    def _skip_found(self, prefix: PendingPrefix) -> None:
        """Lets a partly computed prefix use blocks that were cached by others since."""
        first = prefix.done // BLOCK_TOKENS
        found = self._find(prefix)[first:] if prefix.blocks else []
        if self._pool is None or not found:
            return
        end = first + len(found)
        self._pool.share(found)
        self._pool.release(prefix.blocks[first:end])
        prefix.blocks[first:end] = found
        prefix.done = end * BLOCK_TOKENS

    def _begin(
        self, prefix: PendingPrefix, found: list[int], batch: _Batch, num_running: int
    ) -> PendingPrefix | None:
        """Returns the prefix with its blocks, or one of its first sequences; None if
        it must wait."""
        needs_blocks = self._pool is not None and (
            prefix.job.max_new > 1
            or prefix.most_blocks_skipped > 0
            or len(prefix.tokens) > batch.most
        )
        wanted = batch.seats_for(prefix)
        if not needs_blocks:
            fits = len(prefix.tokens) <= batch.room(prefix, 0) or not batch.parts
            return self._half_way(prefix, wanted, batch) if fits else None
        assert self._pool is not None, "blocks are of a pool"
        assert batch.blocks is not None, "a pool's blocks have a source"
        self._pool.share(found)  # before blocks are taken, or these might be among them
        missing = blocks_for(len(prefix.tokens)) - len(found)
        taken = batch.blocks.take_for(prefix, missing)
        if taken is None:
            self._pool.release(found)
            is_alone = not num_running and not self._begun and prefix.job.max_new == 1
            return self._half_way(prefix, len(prefix.sequences), batch) if is_alone else None
        wanted = min(wanted, 1 + self._pool.num_available)  # every further one needs a block
        begun = self._half_way(prefix, wanted, batch)
        begun.blocks = [*found, *taken]
        begun.done = len(found) * BLOCK_TOKENS
        if not begun.job.is_scored:
            begun.job.result.prompt_cache_hit_tokens = begun.done
        return begun

    def _half_way(self, prefix: PendingPrefix, count: int, batch: _Batch) -> PendingPrefix:
        """Marks the prefix, or one of this many of its sequences, as begun and returns it."""
        begun = prefix
        if count < len(prefix.sequences):
            begun = prefix.split(count)
            self._order.add_before(begun, prefix)
        self._begun.add(begun)
        batch.take_seats(begun)
        return begun


class _Batch:
    """The parts of one step, and what may still be added."""

    def __init__(
        self,
        limits: SamplerLimits,
        budget: int,
        most: int,
        seats: Mapping[str, int],
        blocks: BlockSource | None,
    ) -> None:
        self.tokens_left: float = budget
        self.most = most  # tokens of all parts, if they complete requests
        self.blocks = blocks
        self.waiting: dict[str, PendingPrefix] = {}  # by scope, the first that could not begin
        self.parts: list[PrefillChunk] = []
        self._limits, self._seats = limits, seats
        self._seats_taken: Counter[str] = Counter()
        self._more = most - budget
        self._keys: set[bytes] = set()

    def may_begin(self, prefix: PendingPrefix) -> bool:
        """Whether the prefix does not wait behind another of its tenant."""
        waiting = self.waiting.get(prefix.scope)
        if waiting is None:
            return True
        return self.blocks is not None and self.blocks.may_pass(prefix, waiting)

    def seats_for(self, prefix: PendingPrefix) -> int:
        """Returns how many sequences of the prefix may begin."""
        count, request_id = len(prefix.sequences), prefix.job.request.request_id
        if prefix.ends_with_prompt:
            return count
        # A request whose share fell has more seats than it may have: its count is below zero.
        left = self._seats.get(request_id, 0) - self._seats_taken[request_id]
        return max(0, min(count, left))

    def take_seats(self, prefix: PendingPrefix) -> None:
        """Records that the prefix has begun."""
        self._seats_taken[prefix.job.request.request_id] += len(prefix.sequences)

    def has_room(self, prefix: PendingPrefix, num_found: int) -> bool:
        """Whether at least a block of a prefix that would begin now can be computed, or all that is
        missing of it: one of which nothing is computed takes no seat and no blocks of others."""
        start = num_found * BLOCK_TOKENS
        left = len(prefix.tokens) - start
        return self.room(prefix, start) >= min(BLOCK_TOKENS, left) or not self.parts

    def room(self, prefix: PendingPrefix, start: int) -> int:
        """Returns how many tokens of the prefix may be added from `start` on."""
        more = self._more if self.would_complete(prefix) else 0
        return int((self.tokens_left + more) / self._limits.token_cost(start))

    def cost(self, prefix: PendingPrefix, num_tokens: int) -> float:
        """Returns the cost of the next so many tokens of the prefix."""
        return num_tokens * self._limits.token_cost(prefix.done)

    def would_complete(self, prefix: PendingPrefix) -> bool:
        """Whether this step could complete the prefix's request."""
        cost = self.cost(prefix, len(prefix.tokens) - prefix.done)
        return prefix.ends_with_prompt and cost <= self.tokens_left + self._more

    def add(self, prefix: PendingPrefix) -> int:
        """Adds as much of the prefix as fits, one without blocks whole; returns its tokens.

        The first prefix of a step gets at least a block, or a long prompt would never complete.
        """
        end = len(prefix.tokens)
        if prefix.blocks:
            room = self.room(prefix, prefix.done)
            if not self.parts:
                room = max(room, BLOCK_TOKENS)
            if end - prefix.done > room:
                end = prefix.done + room // BLOCK_TOKENS * BLOCK_TOKENS
            self._keys.update(prefix.keys[prefix.done // BLOCK_TOKENS :])
        num_tokens = end - prefix.done
        if num_tokens:
            self.parts.append(PrefillChunk(prefix, prefix.done, end))
            self.tokens_left -= self.cost(prefix, num_tokens)
        return num_tokens

    def computes(self, prefix: PendingPrefix, num_found: int) -> bool:
        """Whether the first block the prefix lacks is computed in this step already."""
        if not self._keys or num_found >= prefix.most_blocks_skipped:
            return False
        return prefix.keys[num_found] in self._keys
