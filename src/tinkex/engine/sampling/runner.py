"""One step of sampling through the model, as the sampler sees it: rows in, hidden states out."""

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
    """A base model as the sampler sees it."""

    @property
    def pool(self) -> BlockPool | None:
        """The cache's blocks; None if there is no cache, and parts are whole prompts."""
        ...

    @property
    def head(self) -> FrozenLinear:
        """The unembedding."""
        ...

    def run(
        self, sequences: Sequence[RunningSequence], parts: Sequence[PrefillChunk]
    ) -> StepOutput:
        """The newest token of each sequence and the tokens of each part, computed."""
        ...

    def copy_bytes(self, layout: LoraLayout) -> int:
        """Memory that sampling takes for such an adapter, beside its weights."""
        ...

    def clear_block(self, block: int) -> None:
        """Makes a block fit to be written token by token."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Makes one block like another."""
        ...

    def trim(self) -> None:
        """Gives back what can be made again; called between requests."""
        ...
