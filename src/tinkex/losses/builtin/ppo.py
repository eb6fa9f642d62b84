"""Proximal policy optimization.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss
from tinkex.losses.policy_metrics import CLIP_METRICS, policy_metrics, sampled_targets
from tinkex.losses.ratio import (
    CLIP_INPUTS,
    POLICY_INPUTS,
    clip_options,
    clipped_objective,
    is_outside,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSS"]


def _loss(lp_P: Tensor, batch: LossBatch) -> Tensor:
    ratio_P = (lp_P - batch.arrays_P["logprobs"]).exp()
    return clipped_objective(ratio_P, batch)


def _metrics(lp_P: Tensor, batch: LossBatch) -> dict[str, Tensor]:
    ratio_P = (lp_P - batch.arrays_P["logprobs"]).exp()
    return policy_metrics(lp_P, batch, clipped_P=is_outside(ratio_P, batch))


LOSS = Loss(
    name="ppo",
    about="Policy gradient with a clipped probability ratio per token.",
    formula="-min(r * A, clamp(r, low, high) * A)",
    function=_loss,
    inputs=(*POLICY_INPUTS, *CLIP_INPUTS),
    options=clip_options(0.8, 1.2),
    metrics=CLIP_METRICS,
    metrics_function=_metrics,
    metric_targets=sampled_targets,
    is_separable=True,
    zero_where="advantages",
)
