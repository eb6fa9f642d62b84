"""Policy gradient weighted by a clipped, detached ratio.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss
from tinkex.losses.ratio import CLIP_INPUTS, POLICY_INPUTS, clamp_ratio, clip_options

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    ratio_P = (lp_P.detach() - batch.arrays_P["logprobs"]).exp()
    return -clamp_ratio(ratio_P, batch) * lp_P * batch.arrays_P["advantages"]


LOSS = Loss(
    name="cispo",
    about="Policy gradient weighted by the clipped ratio, so that clipped tokens still train.",
    formula="-sg(clamp(r, low, high)) * lp * A",
    function=_loss,
    inputs=(*POLICY_INPUTS, *CLIP_INPUTS),
    options=clip_options(0.0, 4.0),
    is_separable=True,
    zero_where="advantages",
)
