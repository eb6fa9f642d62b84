"""Steps of sampling through the lean decoder by torch's operations, on any device.

Shapes: T rows · D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import AdapterWeights, LoraLayout
from tinkex.engine.lora.row_layout import RowPlan, RowPlanner
from tinkex.engine.lora.rows import RowLora, Run, pair_views
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.sampling.cached_runner import CachedRunner
from tinkex.engine.sampling.forward import InferencePass, OutputRows
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, WASTE_BLOCK, KvCache, blocks_for
from tinkex.engine.sampling.paged_attention import DecodeRow, PrefillSpan, StepAttention
from tinkex.engine.sampling.prefill_queue import SamplerLimits
from tinkex.engine.sampling.state import PrefillChunk, RunningSequence
from tinkex.engine.sampling.step_output import FEWEST_ROWS, StepOutput

__all__ = ["PagedRunner"]


class PagedRunner(CachedRunner):
    """Runs the lean decoder by torch's operations."""

    def __init__(self, decoder: Decoder, limits: SamplerLimits) -> None:
        super().__init__(decoder, limits)
        # Experts take the rows of adapters in unequal numbers, so there these are never stacked.
        stack_bytes = limits.stack_bytes if decoder.spec.experts is None else 0
        self._planner = RowPlanner(stack_bytes, decoder.head_VD)

    @cached_property
    def _model(self) -> InferencePass:
        return InferencePass(self._packed)

    def copy_bytes(self, layout: LoraLayout) -> int:
        return 0  # stacks have a share of their own

    def trim(self) -> None:
        super().trim()
        self._planner.clear()

    def clear_block(self, block: int) -> None:
        self._cache.clear([block])

    def run(
        self, sequences: Sequence[RunningSequence], parts: Sequence[PrefillChunk]
    ) -> StepOutput:
        plan = self._planner.plan([each.job.weights for each in sequences])
        num_prompt_rows = sum(part.end - part.start for part in parts)
        plan.order += [None] * (FEWEST_ROWS - len(plan.order) - num_prompt_rows)
        rows = _Rows()
        for place in plan.order:
            rows.add_sequence(None if place is None else sequences[place])
        kept = _Kept(list(range(len(rows))), list(plan.runs))
        runs = list(plan.runs)
        part_rows = self._add_parts(parts, rows, runs, kept)
        device = self._decoder.head_VD.device
        hidden_TD = self._model.hidden(
            rows.tokens().to(device),
            rows.positions().to(device),
            rows.attention(self._cache),
            RowLora(len(rows), runs, plan.stacked),
            None if len(kept.rows) == len(rows) else kept.wanted(plan, device),
        )
        sequence_rows = [0] * len(sequences)
        for row, place in enumerate(plan.order):
            if place is not None:
                sequence_rows[place] = row
        return StepOutput(hidden_TD, sequence_rows, part_rows)

    def _add_parts(
        self, parts: Sequence[PrefillChunk], rows: _Rows, runs: list[Run], kept: _Kept
    ) -> list[int]:
        """Adds the rows of all parts; returns the first kept row of each."""
        part_rows = [0] * len(parts)
        # Parts that are stored first, those of an adapter and those of a length side by side.
        for i in sorted(range(len(parts)), key=lambda i: _part_order(parts[i])):
            part, weights = parts[i], parts[i].prefix.job.weights
            if part.prefix.blocks and part.end % BLOCK_TOKENS:
                self.clear_block(part.prefix.blocks[-1])
            start, part_rows[i] = len(rows), len(kept.rows)
            rows.add_part(part)
            kept.rows += range(len(rows) - part.num_kept, len(rows))
            self._add_run(runs, start, len(rows), weights)
            self._add_run(kept.runs, part_rows[i], len(kept.rows), weights)
        return part_rows

    def _add_run(
        self, runs: list[Run], start: int, end: int, weights: AdapterWeights | None
    ) -> None:
        if weights is None or start == end:
            return
        pairs = pair_views(weights, self._decoder.head_VD.dtype)
        if runs and runs[-1].end == start and runs[-1].pairs is pairs:
            start = runs.pop().start
        runs.append(Run(start, end, pairs))


def _part_order(part: PrefillChunk) -> tuple[bool, int, int]:
    weights = part.prefix.job.weights
    identity = 0 if weights is None else weights.identity
    return not part.prefix.blocks, identity, part.end - part.start


@dataclass(slots=True)
class _Kept:
    """The rows that pass through the whole last layer, and the sequences or parts
    they belong to."""

    rows: list[int]
    runs: list[Run]

    def wanted(self, plan: RowPlan, device: torch.device) -> OutputRows:
        """Returns these rows as the output rows of a whole step's pass."""
        rows = self.rows + [0] * (FEWEST_ROWS - len(self.rows))
        return OutputRows(
            torch.tensor(rows, device=device), RowLora(len(rows), self.runs, plan.stacked)
        )


class _Rows:
    """The rows of a step being put together: tokens, positions, and where each is stored.

    Sequences come first, then parts that are stored, then parts that are not.
    """

    def __init__(self) -> None:
        self._tails: list[DecodeRow | None] = []
        self._stretches: list[PrefillSpan] = []
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._blocks: list[int] = []  # of every row that is stored

    def __len__(self) -> int:
        return len(self._tokens)

    def add_sequence(self, sequence: RunningSequence | None) -> None:
        """Adds a row for the newest token of the sequence, or an empty one."""
        if sequence is None:
            self._tails.append(None)
            token, position, block = 0, 0, WASTE_BLOCK
        else:
            position = sequence.num_tokens - 1
            self._tails.append(DecodeRow(sequence.blocks, position + 1))
            token, block = sequence.tokens[-1], sequence.blocks[position // BLOCK_TOKENS]
        self._tokens.append(token)
        self._positions.append(position)
        self._blocks.append(block)

    def add_part(self, part: PrefillChunk) -> None:
        """Adds the rows of a part of a prompt."""
        prefix, past, end = part.prefix, part.start, part.end
        past_blocks = prefix.blocks[: blocks_for(past)]
        self._stretches.append(PrefillSpan(end - past, past, past_blocks))
        if prefix.blocks:
            assert len(self._blocks) == len(self._tokens), "what is stored comes first"
            self._blocks += [prefix.blocks[i // BLOCK_TOKENS] for i in range(past, end)]
        self._tokens += prefix.tokens[past:end].tolist()
        self._positions += range(past, end)

    def tokens(self) -> Tensor:
        """Returns the token of every row."""
        return torch.tensor(self._tokens)

    def positions(self) -> Tensor:
        """Returns the position of every row in its sequence."""
        return torch.tensor(self._positions)

    def attention(self, cache: KvCache) -> StepAttention:
        """Returns the attention of these rows to the cache and to each other."""
        places, count = None, len(self._blocks)
        if count:
            slots = [position % BLOCK_TOKENS for position in self._positions[:count]]
            places = cache.places(self._blocks, slots)
        return StepAttention(cache, self._tails, self._stretches, places)
