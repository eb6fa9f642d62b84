"""Sampling steps of models that run through transformers: without a cache, every sequence is
computed from its beginning at each step.

Shapes: T rows · D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tinkex.engine.lora.adapter import LoraBatch, LoraLayout
from tinkex.engine.model.decoder import Backbone
from tinkex.engine.ops.linear import FrozenLinear
from tinkex.engine.sampling.state import PrefillChunk, RunningSequence
from tinkex.engine.sampling.step_output import StepOutput

__all__ = ["UncachedRunner"]


class UncachedRunner:
    """Runs any backbone without a cache."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @property
    def pool(self) -> None:
        return None

    @property
    def head(self) -> FrozenLinear:
        return self._backbone.head

    def copy_bytes(self, layout: LoraLayout) -> int:
        return 0

    def clear_block(self, block: int) -> None:
        raise NotImplementedError("there is no cache")

    def copy_block(self, source: int, target: int) -> None:
        raise NotImplementedError("there is no cache")

    def trim(self) -> None:
        """Does nothing: nothing is kept between steps."""

    def run(
        self, sequences: Sequence[RunningSequence], parts: Sequence[PrefillChunk]
    ) -> StepOutput:
        texts = [each.all_tokens() for each in sequences] + [part.prefix.tokens for part in parts]
        jobs = [each.job for each in sequences] + [part.prefix.job for part in parts]
        lengths = [len(text) for text in texts]
        ends = np.cumsum(lengths).tolist()
        lora = LoraBatch.merged(
            (end, None if job.weights is None else job.weights.pairs)
            for end, job in zip(ends, jobs, strict=True)
        )
        tokens_T = torch.from_numpy(np.concatenate(texts)).to(self._backbone.head_VD.device)
        hidden_TD = self._backbone.forward_hidden(tokens_T, lengths, lora)
        count = len(sequences)
        starts = [end - part.num_kept for end, part in zip(ends[count:], parts, strict=True)]
        return StepOutput(hidden_TD, [end - 1 for end in ends[:count]], starts)
