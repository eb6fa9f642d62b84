"""Rotary positions as tables: the cosine and sine of every position, by a rotary description.

Shapes: P positions · Z pairs of features that are rotated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.model.spec import RopeSpec

__all__ = ["RopeTable", "rope_frequencies", "rope_table"]


class RopeTable(NamedTuple):
    """Cosine and sine of every position and pair, in float32.

    A decoder makes one per `RopeSpec`; training, sampling and kernels read the same one.
    """

    cos_PZ: Tensor
    sin_PZ: Tensor


def rope_table(rope: RopeSpec, head_dim: int, context_length: int) -> RopeTable:
    """The table for positions 0 to `context_length - 1`."""
    positions = torch.arange(context_length, dtype=torch.float32)
    angles_PZ = torch.outer(positions, rope_frequencies(rope, head_dim))
    cos_PZ, sin_PZ = angles_PZ.cos(), angles_PZ.sin()
    if rope.amplitude == 1.0:
        return RopeTable(cos_PZ, sin_PZ)
    return RopeTable(cos_PZ.mul_(rope.amplitude), sin_PZ.mul_(rope.amplitude))


def rope_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position for each pair of features, scaled as the model's config says."""
    rotated = rope.rotated(head_dim)
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.pair_factors) * rope.theta**exponents)
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _stretch_llama3(frequencies, rope)
    return frequencies


def _stretch_llama3(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Low frequencies are divided by `factor`, high ones stay, those between are blended."""
    rotations = rope.original_context * frequencies / (2 * math.pi)
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / rope.factor)
