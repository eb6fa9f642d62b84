"""Steps of sampling through the lean decoder by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from tinkex.engine.lora.adapter import HEAD_SITE, LoraLayout
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.native.adapters import AdapterCopies, Run
from tinkex.engine.native.forward import KernelOutputRows, NativePass
from tinkex.engine.native.kernels import Kernels
from tinkex.engine.native.step import KernelStep, StepList
from tinkex.engine.sampling.cached_runner import CachedRunner
from tinkex.engine.sampling.prefill_queue import SamplerLimits
from tinkex.engine.sampling.state import PrefillChunk, RunningSequence, SampleJob
from tinkex.engine.sampling.step_output import FEWEST_ROWS, StepOutput

__all__ = ["NativeRunner"]


class NativeRunner(CachedRunner):
    """The lean decoder in float32 on a CPU."""

    def __init__(self, decoder: Decoder, limits: SamplerLimits, kernels: Kernels) -> None:
        super().__init__(decoder, limits)
        self._kernels = kernels
        groups = [group for group in decoder.groups if group.site != HEAD_SITE]
        self._copies = AdapterCopies(groups)

    @cached_property
    def _model(self) -> NativePass:
        return NativePass(self._packed, self._kernels, self._copies)

    def copy_bytes(self, layout: LoraLayout) -> int:
        return self._copies.size_bytes(layout)

    def clear_block(self, block: int) -> None:
        """Does nothing: the kernels never read beyond the end of a sequence."""

    def run(
        self, sequences: Sequence[RunningSequence], parts: Sequence[PrefillChunk]
    ) -> StepOutput:
        # The rows of an adapter are adjacent, those of running sequences before those of prompts.
        items = [(_identity(each.job), False, i) for i, each in enumerate(sequences)]
        items += [(_identity(part.prefix.job), True, i) for i, part in enumerate(parts)]
        rows, kept = StepList(), list[int]()
        runs, kept_runs = list[Run](), list[Run]()
        sequence_rows, part_rows = [0] * len(sequences), [0] * len(parts)
        for _, is_part, i in sorted(items):
            start, kept_start = rows.num_rows, len(kept)
            if is_part:
                part_rows[i], job = kept_start, parts[i].prefix.job
                rows.add_part(parts[i])
                kept += range(rows.num_rows - parts[i].num_kept, rows.num_rows)
            else:
                sequence_rows[i], job = kept_start, sequences[i].job
                rows.add_sequence(sequences[i])
                kept.append(start)
            runs.append((start, rows.num_rows, job.weights))
            kept_runs.append((kept_start, len(kept), job.weights))
        while rows.num_rows < FEWEST_ROWS:
            kept.append(rows.num_rows)
            rows.add_sequence(None)
        step = KernelStep(rows, self._cache, self._decoder.spec, self._model.ropes, self._kernels)
        wanted = None
        if len(kept) < rows.num_rows:
            kept += [0] * (FEWEST_ROWS - len(kept))
            wanted = KernelOutputRows(torch.tensor(kept), kept_runs)
        hidden_TD = self._model.hidden(rows.tokens(), step, runs, wanted)
        return StepOutput(hidden_TD, sequence_rows, part_rows)


def _identity(job: SampleJob) -> int:
    return 0 if job.weights is None else job.weights.identity
