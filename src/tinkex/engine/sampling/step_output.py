"""The output of a sampling step: hidden states, and the sequence of each.

Shapes: T rows · D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["FEWEST_ROWS", "StepOutput"]

FEWEST_ROWS = 4
"""Minimum rows per step: smaller products are slower and round differently."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Hidden states of a step, and the first row of each sequence and each part.

    Only the rows that a part needs are present.
    """

    hidden_TD: Tensor
    sequence_rows: list[int]
    part_rows: list[int]
