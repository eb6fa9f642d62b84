"""Proximal policy optimization.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss
from tinkex.losses.ratio import CLIP_INPUTS, POLICY_INPUTS, clip_options, clipped_objective

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    ratio_P = (lp_P - batch.arrays_P["logprobs"]).exp()
    return clipped_objective(ratio_P, batch)


LOSS = Loss(
    name="ppo",
    about="Policy gradient with a clipped probability ratio per token.",
    formula="-min(r * A, clamp(r, low, high) * A)",
    function=_loss,
    inputs=(*POLICY_INPUTS, *CLIP_INPUTS),
    options=clip_options(0.8, 1.2),
    is_separable=True,
    zero_where="advantages",
)
