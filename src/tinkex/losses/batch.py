"""What a loss function gets beside the logprobs.

Shapes: P targets of the batch, all datums in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossBatch"]


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Inputs of all targets of a batch, the sequence each target belongs to, and the options.

    `arrays_P` has one value per target for every input that the datums bring; an input declared
    per datum is repeated for each of its targets. `config` has every option of the loss.
    """

    arrays_P: dict[str, Tensor]
    sequence_P: Tensor
    num_sequences: int
    config: dict[str, float]

    def select(self, place_P: Tensor) -> LossBatch:
        """The inputs of these targets alone."""
        arrays = {name: array[place_P] for name, array in self.arrays_P.items()}
        return LossBatch(arrays, self.sequence_P[place_P], self.num_sequences, self.config)
