"""Direct reward optimization.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss, LossOption
from tinkex.losses.policy_metrics import POLICY_METRICS, policy_metrics, sampled_targets
from tinkex.losses.ratio import POLICY_INPUTS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    drift_P = lp_P - batch.arrays_P["logprobs"]
    gain_P = lp_P * batch.arrays_P["advantages"]
    return -(gain_P - 0.5 * batch.config["beta"] * drift_P.square())


LOSS = Loss(
    name="dro",
    about="Off-policy reward optimization with a quadratic penalty on the drift of the logprob.",
    formula="-(lp * A - beta/2 * (lp - q)^2)",
    function=_loss,
    inputs=POLICY_INPUTS,
    options=(LossOption(name="beta", about="Strength of the penalty.", default=0.05),),
    metrics=POLICY_METRICS,
    metrics_function=policy_metrics,
    metric_targets=sampled_targets,
    is_separable=True,
)
