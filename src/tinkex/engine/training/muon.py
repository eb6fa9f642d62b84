"""Muon's update: each matrix moves along the nearest orthogonal matrix to its direction.

The direction is orthogonalized by five Newton-Schulz iterations with the published quintic
coefficients. They stop short of convergence on purpose: singular values end near 1, not at it. The
published code iterates in bfloat16; here it is float32, which costs little at LoRA's ranks.

A matrix of R rows and C columns moves by the learning rate times sqrt(max(1, R / C)): the published
rule that torch.optim.Muon calls "original". For LoRA that is 1 for A, and sqrt(outputs / rank) for
B wherever the rank is below the outputs.

Shapes: N matrices of one shape · R rows · C columns · S the smaller, L the larger of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["add_orthogonalized"]

_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7
"""A direction of zeros, as A's is in the first step, stays one."""


def add_orthogonalized(weights: Sequence[Tensor], directions: Sequence[Tensor], by: float) -> None:
    """Adds to each weight, in place, its orthogonalized direction times `by` and its shape's scale.

    Matrices of one shape are iterated together.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, direction in enumerate(directions):
        places.setdefault(tuple(direction.shape), []).append(place)
    for (num_rows, num_columns), alike in places.items():
        found_NRC = _orthogonalized(torch.stack([directions[place] for place in alike]))
        scale = math.sqrt(max(1.0, num_rows / num_columns))
        for place, found_RC in zip(alike, found_NRC.unbind(0), strict=True):
            weights[place].add_(found_RC, alpha=by * scale)


def _orthogonalized(g_NRC: Tensor) -> Tensor:
    is_tall = g_NRC.shape[1] > g_NRC.shape[2]
    x_NSL = g_NRC.transpose(1, 2) if is_tall else g_NRC
    norm_N11 = torch.linalg.vector_norm(x_NSL, dim=(1, 2), keepdim=True)
    x_NSL = x_NSL / norm_N11.clamp(min=_SMALLEST_NORM)  # no singular value is above 1
    for _ in range(_ITERATIONS):
        gram_NSS = torch.bmm(x_NSL, x_NSL.transpose(1, 2))
        update_NSS = torch.baddbmm(gram_NSS, gram_NSS, gram_NSS, beta=_B, alpha=_C)
        x_NSL = torch.baddbmm(x_NSL, update_NSS, x_NSL, beta=_A)
    return x_NSL.transpose(1, 2) if is_tall else x_NSL
