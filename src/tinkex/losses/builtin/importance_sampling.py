"""Policy gradient with an importance ratio.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss
from tinkex.losses.policy_metrics import POLICY_METRICS, policy_metrics, sampled_targets
from tinkex.losses.ratio import POLICY_INPUTS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    ratio_P = (lp_P - batch.arrays_P["logprobs"]).exp()
    return -ratio_P * batch.arrays_P["advantages"]


LOSS = Loss(
    name="importance_sampling",
    about="Policy gradient, corrected for the sampler's distribution by the probability ratio.",
    formula="-r * A",
    function=_loss,
    inputs=POLICY_INPUTS,
    metrics=POLICY_METRICS,
    metrics_function=policy_metrics,
    metric_targets=sampled_targets,
    is_separable=True,
    zero_where="advantages",
)
