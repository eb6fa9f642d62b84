"""What a step of sampling gives: hidden states, and whose they are.

Shapes: T rows · D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["FEWEST_ROWS", "StepOutput"]

FEWEST_ROWS = 4
"""Of a step. With fewer a product is slower, and its bits differ from those in larger steps."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Hidden states of a step, and where each sequence's row and each part's rows begin.

    Of a part only the rows that it keeps are there.
    """

    hidden_TD: Tensor
    sequence_rows: list[int]
    part_rows: list[int]
