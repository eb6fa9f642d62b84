"""Prompts that wait and prompts half way: which tokens of which ones the next step computes.

First come first served, within a budget of tokens: large while nothing is being written, small
beside sequences that are, so that a long prompt does not hold them up; a prompt beyond it is taken
in parts. Blocks that hold the same beginning already are used again. A prompt whose next block is
just being computed for another one waits a step and finds it done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

from tinkex.engine.block_pool import BlockPool
from tinkex.engine.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sample_jobs import PromptPart, Stem

__all__ = ["PromptLine", "SamplerLimits"]


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """How much may run at once."""

    cache_tokens: int
    prefill_tokens: int = 1024  # of prompts in a step of their own
    beside_tokens: int = 256  # of prompts in a step that also writes
    max_sequences: int = 256
    stack_bytes: int = 2**29  # for adapters side by side
    reuses_prompts: bool = True  # else no bit of an answer depends on what was asked before


class PromptLine:
    """Stems in the order they came. Without a pool (no cache) each is computed whole."""

    def __init__(self, limits: SamplerLimits, pool: BlockPool | None) -> None:
        self._limits, self._pool = limits, pool
        self._waiting: deque[Stem] = deque()
        self._begun: list[Stem] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def add(self, stem: Stem) -> None:
        """Puts a stem at the end."""
        self._waiting.append(stem)

    def add_first(self, stem: Stem) -> None:
        """Puts a stem at the front."""
        self._waiting.appendleft(stem)

    def stems(self) -> list[Stem]:
        """All of them."""
        return [*self._begun, *self._waiting]

    def remove(self, request_ids: Container[str]) -> None:
        """Drops the stems of these requests."""
        for stem in self._begun:
            if stem.job.request.request_id in request_ids:
                self.give_back(stem)
        self._begun = [s for s in self._begun if s.job.request.request_id not in request_ids]
        self._waiting = deque(
            s for s in self._waiting if s.job.request.request_id not in request_ids
        )

    def step_back(self) -> bool:
        """Whether a prompt half way could be sent back, so that others get its blocks."""
        for stem in reversed(self._begun):
            if stem.blocks:
                self._begun.remove(stem)
                self.give_back(stem)
                self._waiting.appendleft(stem)
                return True
        return False

    def next_parts(self, num_running: int) -> list[PromptPart]:
        """What to compute of the prompts now. Every part is done before the next call."""
        limits = self._limits
        budget = limits.beside_tokens if num_running else limits.prefill_tokens
        seats = limits.max_sequences - num_running
        batch = _Batch(budget, seats)
        for stem in self._begun:
            batch.add(stem)
        later: deque[Stem] = deque()
        while self._waiting and batch.tokens_left > 0 and batch.seats_left > 0:
            stem = self._waiting.popleft()
            if batch.computes(stem, self._find(stem)):
                later.append(stem)
                continue
            begun = self._begin(stem, batch, num_running)
            if begun is None:
                self._waiting.appendleft(stem)
                break
            if begun is not stem:
                self._waiting.appendleft(stem)
            self._begun.append(begun)
            batch.add(begun)
        self._waiting.extendleft(reversed(later))
        return batch.parts

    def finish_parts(self, parts: list[PromptPart]) -> list[Stem]:
        """Notes that the parts were computed; the stems that are complete leave the line."""
        for part in parts:
            stem = part.stem
            stem.done = part.end
            if self._pool is not None and stem.blocks:
                for i in range(part.start // BLOCK_TOKENS, part.end // BLOCK_TOKENS):
                    self._pool.remember(stem.blocks[i], stem.keys[i])
        complete = [part.stem for part in parts if part.stem.is_complete]
        self._begun = [stem for stem in self._begun if not stem.is_complete]
        return complete

    def clear(self) -> None:
        """Drops all."""
        for stem in self._begun:
            self.give_back(stem)
        self._begun.clear()
        self._waiting.clear()

    def give_back(self, stem: Stem) -> None:
        """Lets go of the stem's blocks and of what was computed."""
        if self._pool is not None:
            self._pool.release(stem.blocks)
        stem.start_over()

    def _find(self, stem: Stem) -> list[int]:
        """The blocks that hold its beginning already."""
        if self._pool is None or not stem.most_blocks_skipped:
            return []
        return self._pool.find(stem.keys[: stem.most_blocks_skipped])

    def _begin(self, stem: Stem, batch: _Batch, num_running: int) -> Stem | None:
        """The stem with its blocks, or one of its first sequences; None if it must wait."""
        needs_blocks = self._pool is not None and (
            stem.job.max_new > 1 or stem.most_blocks_skipped > 0 or len(stem.tokens) > batch.budget
        )
        wanted = min(len(stem.sequences), batch.seats_left)
        if not needs_blocks:
            fits = len(stem.tokens) <= batch.tokens_left or not batch.parts
            return (stem if wanted == len(stem.sequences) else stem.split(wanted)) if fits else None
        assert self._pool is not None, "blocks are of a pool"
        found = self._find(stem)
        self._pool.share(found)  # before blocks are taken, or these might be among them
        missing = blocks_for(len(stem.tokens)) - len(found)
        taken = self._pool.take(missing)
        if taken is None:
            self._pool.release(found)
            is_alone = not num_running and not self._begun
            return stem if is_alone and stem.job.max_new == 1 else None
        wanted = min(wanted, 1 + self._pool.num_available)  # every further one needs a block
        begun = stem if wanted == len(stem.sequences) else stem.split(wanted)
        begun.blocks = [*found, *taken]
        begun.done = len(found) * BLOCK_TOKENS
        if not begun.job.is_scored:
            begun.job.result.prompt_cache_hit_tokens = begun.done
        return begun


class _Batch:
    """The parts of one step, and what may still be added."""

    def __init__(self, budget: int, seats: int) -> None:
        self.budget = self.tokens_left = budget
        self.seats_left = seats
        self.parts: list[PromptPart] = []
        self._keys: set[bytes] = set()

    def add(self, stem: Stem) -> None:
        """Adds as much of the stem as there is room for; one without blocks is added whole."""
        self.seats_left -= len(stem.sequences)
        end = len(stem.tokens)
        if stem.blocks:
            if end - stem.done > self.tokens_left:
                end = stem.done + self.tokens_left // BLOCK_TOKENS * BLOCK_TOKENS
            self._keys.update(stem.keys[stem.done // BLOCK_TOKENS :])
        if end > stem.done:
            self.parts.append(PromptPart(stem, stem.done, end))
            self.tokens_left -= end - stem.done

    def computes(self, stem: Stem, found: list[int]) -> bool:
        """Whether the first block the stem lacks is on its way already."""
        place = len(found)
        if not self._keys:
            return False
        return place < stem.most_blocks_skipped and stem.keys[place] in self._keys
