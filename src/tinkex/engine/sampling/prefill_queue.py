"""Prompts that wait and prompts half way: which tokens of which ones the next step computes.

In the order of `prompt_order`, within a budget of tokens: large while nothing is being written,
small beside sequences that are, so that a long prompt does not hold them up; a prompt beyond it is
taken in parts. While quick requests come, those that are done with a short prompt, steps are
shorter still, for such a request waits for the step that runs when it comes. A request that is
done with its prompt is computed whole where it can be, with blocks or without, and in every second
step that completes one its tenant's other prompts wait. Blocks that hold the same beginning already
are used again. A prompt whose next block is just being computed for another one waits a step and
finds it done. How many sequences of a request may begin is not decided here (`Seating`), nor whose
blocks are taken back for a prompt when the cache is full (`KvEviction`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sampling.prefill_order import PrefillOrder
from tinkex.engine.sampling.seat_shares import SeatClaim
from tinkex.engine.sampling.state import PrefillChunk, Stem

__all__ = ["BlockSource", "PrefillQueue", "SamplerLimits"]


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """How much may run at once."""

    cache_tokens: int
    prefill_tokens: int = 1024  # of prompts in a step of their own
    beside_tokens: int = 512  # of prompts in a step that also writes
    short_tokens: int = 64  # the same while quick requests come, but for what is done then
    quick_tokens: int = 256  # of a quick request
    max_sequences: int = 256
    stack_bytes: int = 2**29  # for adapters side by side
    reuses_prompts: bool = True  # else no bit of an answer depends on what was asked before


_SHORT_STEPS = 32
"""How many steps are short after a quick request has come."""


class BlockSource(Protocol):
    """Where the blocks of a prompt come from."""

    def take_for(self, stem: Stem, count: int) -> list[int] | None:
        """Blocks for a prompt that begins; None if it must wait for them."""
        ...

    def may_pass(self, stem: Stem, waiting: Stem) -> bool:
        """Whether the stem may have blocks before another of its tenant that waits for them."""
        ...


class PrefillQueue:
    """Stems in the order of their turns. Without a pool (no cache) each is computed whole."""

    def __init__(self, limits: SamplerLimits, pool: BlockPool | None) -> None:
        self._limits, self._pool = limits, pool
        self._order = PrefillOrder()
        self._begun: set[Stem] = set()  # those of them that are half way
        self._in_step: set[Stem] = set()  # those of which parts were chosen and are not done
        self._num_short = 0  # how many steps more are to be short
        self._has_held = False  # whether the last step held others up for one that it completed

    def __len__(self) -> int:
        return len(self._order)

    def add(self, stem: Stem) -> None:
        """Gives a stem that has come its place."""
        self._order.add(stem)
        if stem.ends_with_prompt and len(stem.tokens) <= self._limits.quick_tokens:
            self._num_short = _SHORT_STEPS

    def put_back(self, stem: Stem) -> None:
        """Gives a stem that has run its place again."""
        self._order.put_back(stem)

    def has_any_of(self, scopes: Container[str]) -> bool:
        """Whether a stem of these tenants waits or is half way."""
        return self._order.has_any_of(scopes)

    def claims(self) -> dict[str, SeatClaim]:
        """The seats that sequences of each request will need once their prompt is computed; those
        half way count as held. Requests that end with their prompt need none."""
        claims: dict[str, SeatClaim] = {}
        for stem in self._order.stems():
            if stem.ends_with_prompt:
                continue
            claim = claims.setdefault(stem.job.request.request_id, SeatClaim(stem.scope))
            claim.wanted += len(stem.sequences)
            claim.held += len(stem.sequences) if stem in self._begun else 0
        return claims

    def begun(self) -> list[Stem]:
        """Stems half way, the last due first."""
        return sorted(self._begun, key=lambda each: each.due, reverse=True)

    def is_in_step(self, stem: Stem) -> bool:
        """Whether a part of it is computed in this step."""
        return stem in self._in_step

    def stems(self) -> list[Stem]:
        """All of them."""
        return self._order.stems()

    def remove(self, request_ids: Container[str]) -> None:
        """Drops the stems of these requests."""
        for stem in self.stems():
            if stem.job.request.request_id in request_ids:
                self._order.remove(stem)
                self.stop(stem)

    def next_parts(
        self,
        num_running: int,
        seats: Mapping[str, int],
        blocks: BlockSource | None,
        tenants: Container[str] | None = None,
    ) -> list[PrefillChunk]:
        """What to compute of these tenants' prompts now, or of all. Every part is done before the
        next call.

        `seats` says how many sequences of each request may begin; `blocks` is None without a pool.
        """
        batch = self._new_batch(num_running, seats, blocks)
        held = set() if self._has_held else self._scopes_done_with(batch)
        self._has_held = False
        self._in_step = set()
        for stem in self._order.in_turn(lambda each: self._can_go_on(each, seats), tenants):
            if batch.tokens_left <= 0:
                break
            if stem.scope in held and not batch.would_complete(stem):
                self._has_held = True
                continue
            chosen = self._choose(stem, batch, num_running)
            num_tokens = 0 if chosen is None else batch.add(chosen)
            if chosen is not None and num_tokens:
                self._in_step.add(chosen)
                self._order.charge(stem, num_tokens)
        return batch.parts

    def _can_go_on(self, stem: Stem, seats: Mapping[str, int]) -> bool:
        """Whether the stem is half way, needs no seat, or may have one."""
        has_seat = stem in self._begun or stem.ends_with_prompt
        return has_seat or seats.get(stem.job.request.request_id, 0) > 0

    def _new_batch(
        self, num_running: int, seats: Mapping[str, int], blocks: BlockSource | None
    ) -> _Batch:
        limits = self._limits
        budget = most = limits.beside_tokens if num_running else limits.prefill_tokens
        if num_running and self._num_short:
            self._num_short -= 1
            budget = min(most, limits.short_tokens)
        return _Batch(budget, most, seats, blocks)

    def _scopes_done_with(self, batch: _Batch) -> set[str]:
        """Those of which requests could be done with this step."""
        return {stem.scope for stem in self._order.stems() if batch.would_complete(stem)}

    def finish_parts(self, parts: list[PrefillChunk]) -> list[Stem]:
        """Notes that the parts were computed; the stems that are complete leave the line."""
        for part in parts:
            stem = part.stem
            stem.done = part.end
            if self._pool is not None and stem.blocks:
                for i in range(part.start // BLOCK_TOKENS, part.end // BLOCK_TOKENS):
                    self._pool.remember(stem.blocks[i], stem.keys[i])
        self._in_step = set()
        complete = [part.stem for part in parts if part.stem.is_complete]
        for stem in complete:
            self._order.remove(stem)
            self._begun.discard(stem)
        return complete

    def clear(self) -> None:
        """Drops all."""
        for stem in self.stems():
            self.stop(stem)
        self._order.clear()

    def give_back(self, stem: Stem) -> None:
        """Lets go of the stem's blocks and of what was computed."""
        if self._pool is not None:
            self._pool.release(stem.blocks)
        stem.start_over()

    def stop(self, stem: Stem) -> None:
        """Has a stem begin anew, if it was half way."""
        if stem in self._begun:
            self._begun.discard(stem)
            self.give_back(stem)

    def _find(self, stem: Stem) -> list[int]:
        """The blocks that hold its beginning already."""
        if self._pool is None or not stem.most_blocks_skipped:
            return []
        return self._pool.find(stem.keys[: stem.most_blocks_skipped])

    def _choose(self, stem: Stem, batch: _Batch, num_running: int) -> Stem | None:
        """The stem, or a part of it, if it is to be computed in this step."""
        if stem in self._begun:
            self._skip_found(stem)
            return None if batch.computes(stem, stem.done // BLOCK_TOKENS) else stem
        found = self._find(stem)
        if batch.computes(stem, len(found)):
            return None
        if not batch.seats_for(stem) or not batch.has_room(stem, len(found)):
            return None
        if batch.may_begin(stem):
            begun = self._begin(stem, found, batch, num_running)
            if begun is not None:
                return begun
            batch.waiting.setdefault(stem.scope, stem)
        # Done with this step it keeps neither a seat nor blocks, so it takes none from others.
        completes = batch.would_complete(stem)
        return self._half_way(stem, len(stem.sequences), batch) if completes else None

    def _skip_found(self, stem: Stem) -> None:
        """Lets a stem half way use what others have computed of it since."""
        first = stem.done // BLOCK_TOKENS
        found = self._find(stem)[first:] if stem.blocks else []
        if self._pool is None or not found:
            return
        end = first + len(found)
        self._pool.share(found)
        self._pool.release(stem.blocks[first:end])
        stem.blocks[first:end] = found
        stem.done = end * BLOCK_TOKENS

    def _begin(self, stem: Stem, found: list[int], batch: _Batch, num_running: int) -> Stem | None:
        """The stem with its blocks, or one of its first sequences; None if it must wait."""
        needs_blocks = self._pool is not None and (
            stem.job.max_new > 1 or stem.most_blocks_skipped > 0 or len(stem.tokens) > batch.most
        )
        wanted = batch.seats_for(stem)
        if not needs_blocks:
            fits = len(stem.tokens) <= batch.room(stem) or not batch.parts
            return self._half_way(stem, wanted, batch) if fits else None
        assert self._pool is not None, "blocks are of a pool"
        assert batch.blocks is not None, "a pool's blocks have a source"
        self._pool.share(found)  # before blocks are taken, or these might be among them
        missing = blocks_for(len(stem.tokens)) - len(found)
        taken = batch.blocks.take_for(stem, missing)
        if taken is None:
            self._pool.release(found)
            is_alone = not num_running and not self._begun and stem.job.max_new == 1
            return self._half_way(stem, len(stem.sequences), batch) if is_alone else None
        wanted = min(wanted, 1 + self._pool.num_available)  # every further one needs a block
        begun = self._half_way(stem, wanted, batch)
        begun.blocks = [*found, *taken]
        begun.done = len(found) * BLOCK_TOKENS
        if not begun.job.is_scored:
            begun.job.result.prompt_cache_hit_tokens = begun.done
        return begun

    def _half_way(self, stem: Stem, count: int, batch: _Batch) -> Stem:
        """The stem, or one of so many of its sequences, which has begun from here on."""
        begun = stem
        if count < len(stem.sequences):
            begun = stem.split(count)
            self._order.add_before(begun, stem)
        self._begun.add(begun)
        batch.take_seats(begun)
        return begun


class _Batch:
    """The parts of one step, and what may still be added."""

    def __init__(
        self, budget: int, most: int, seats: Mapping[str, int], blocks: BlockSource | None
    ) -> None:
        self.tokens_left = budget
        self.most = most  # tokens of all parts, if requests are done then
        self.blocks = blocks
        self.waiting: dict[str, Stem] = {}  # of each scope the first that could not begin
        self.parts: list[PrefillChunk] = []
        self._seats = seats
        self._seats_taken: Counter[str] = Counter()
        self._more = most - budget
        self._keys: set[bytes] = set()

    def may_begin(self, stem: Stem) -> bool:
        """Whether the stem does not wait behind another of its tenant."""
        waiting = self.waiting.get(stem.scope)
        if waiting is None:
            return True
        return self.blocks is not None and self.blocks.may_pass(stem, waiting)

    def seats_for(self, stem: Stem) -> int:
        """How many sequences of the stem may begin."""
        count, request_id = len(stem.sequences), stem.job.request.request_id
        if stem.ends_with_prompt:
            return count
        # A request whose share fell has more seats than it may have: its count is below zero.
        left = self._seats.get(request_id, 0) - self._seats_taken[request_id]
        return max(0, min(count, left))

    def take_seats(self, stem: Stem) -> None:
        """Notes that the stem has begun."""
        self._seats_taken[stem.job.request.request_id] += len(stem.sequences)

    def has_room(self, stem: Stem, num_found: int) -> bool:
        """Whether at least a block of a stem that would begin now can be computed, or all that is
        missing of it: one of which nothing is computed takes no seat and no blocks of others."""
        left = len(stem.tokens) - num_found * BLOCK_TOKENS
        return self.room(stem) >= min(BLOCK_TOKENS, left) or not self.parts

    def room(self, stem: Stem) -> int:
        """How many tokens of the stem may be added."""
        return self.tokens_left + (self._more if self.would_complete(stem) else 0)

    def would_complete(self, stem: Stem) -> bool:
        """Whether the stem's request could be done with this step."""
        left = len(stem.tokens) - stem.done
        return stem.ends_with_prompt and left <= self.tokens_left + self._more

    def add(self, stem: Stem) -> int:
        """Adds as much of the stem as there is room for, one without blocks whole; how much."""
        end = len(stem.tokens)
        if stem.blocks:
            room = self.room(stem)
            if end - stem.done > room:
                end = stem.done + room // BLOCK_TOKENS * BLOCK_TOKENS
            self._keys.update(stem.keys[stem.done // BLOCK_TOKENS :])
        if end > stem.done:
            self.parts.append(PrefillChunk(stem, stem.done, end))
            self.tokens_left -= end - stem.done
        return end - stem.done

    def computes(self, stem: Stem, num_found: int) -> bool:
        """Whether the first block the stem lacks is on its way already."""
        if not self._keys or num_found >= stem.most_blocks_skipped:
            return False
        return stem.keys[num_found] in self._keys
