"""Weighted cross entropy.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss, LossInput

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    return -batch.arrays_P["weights"] * lp_P


def _slope(_lp_P: Tensor, batch: LossBatch) -> Tensor:
    return -batch.arrays_P["weights"]


LOSS = Loss(
    name="cross_entropy",
    about="Supervised fine-tuning and distillation: weighted negative log likelihood.",
    formula="-w * lp",
    function=_loss,
    slope_function=_slope,
    inputs=(LossInput(name="weights", about="Weight of each target, `w`."),),
    takes_top_k=True,
    is_separable=True,
    zero_where="weights",
    notes="`target_tokens` and `weights` may have the shape `[N, K]`: K weighted targets at each "
    "position, as distillation needs.",
)
