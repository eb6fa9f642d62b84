"""The interface of one sampling step through the model: rows in, hidden states out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tinkex.engine.lora.adapter import LoraLayout
from tinkex.engine.ops.linear import FrozenLinear
from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.state import PrefillChunk, RunningSequence
from tinkex.engine.sampling.step_output import StepOutput

__all__ = ["StepRunner"]


class StepRunner(Protocol):
    """The sampler's interface to a base model."""

    @property
    def pool(self) -> BlockPool | None:
        """The cache's blocks; None if there is no cache, so that parts are whole prompts."""
        ...

    @property
    def head(self) -> FrozenLinear:
        """The unembedding."""
        ...

    def run(
        self, sequences: Sequence[RunningSequence], parts: Sequence[PrefillChunk]
    ) -> StepOutput:
        """Computes the newest token of each sequence and the tokens of each part."""
        ...

    def copy_bytes(self, layout: LoraLayout) -> int:
        """Returns the bytes that sampling takes for an adapter of this layout,
        beside its weights."""
        ...

    def clear_block(self, block: int) -> None:
        """Clears a block, so that it can be written token by token."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copies the content of one block to another."""
        ...

    def trim(self) -> None:
        """Frees memory that can be computed again; called between requests."""
        ...
