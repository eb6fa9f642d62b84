"""Policy gradient weighted by a clipped, detached ratio.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss
from tinkex.losses.policy_metrics import CLIP_METRICS, policy_metrics, sampled_targets
from tinkex.losses.ratio import CLIP_INPUTS, POLICY_INPUTS, clamp_ratio, clip_options, is_outside

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    ratio_P = (lp_P.detach() - batch.arrays_P["logprobs"]).exp()
    return -clamp_ratio(ratio_P, batch) * lp_P * batch.arrays_P["advantages"]


def _metrics(lp_P: Tensor, batch: LossBatch) -> dict[str, Tensor]:
    ratio_P = (lp_P - batch.arrays_P["logprobs"]).exp()
    return policy_metrics(lp_P, batch, clipped_P=is_outside(ratio_P, batch))


LOSS = Loss(
    name="cispo",
    about="Policy gradient weighted by the clipped ratio, so that clipped tokens still train.",
    formula="-sg(clamp(r, low, high)) * lp * A",
    function=_loss,
    inputs=(*POLICY_INPUTS, *CLIP_INPUTS),
    options=clip_options(0.0, 4.0),
    metrics=CLIP_METRICS,
    metrics_function=_metrics,
    metric_targets=sampled_targets,
    is_separable=True,
    zero_where="advantages",
)
