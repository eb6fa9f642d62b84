"""Group sequence policy optimization: one ratio per sequence.

Shapes: P targets of the batch · S sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import Loss, LossInput
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
    return clipped_objective(_ratio(lp_P, batch), batch)


def _ratio(lp_P: Tensor, batch: LossBatch) -> Tensor:
    """The ratio of each target's sequence, with the gradient of the target's own logprob."""
    counts_P = (batch.arrays_P["sequence_ratio_mask"] != 0).to(lp_P.dtype)
    drift_P = (lp_P.detach() - batch.arrays_P["logprobs"]) * counts_P
    zeros_S = lp_P.detach().new_zeros(batch.num_sequences)
    total_S = zeros_S.index_add(0, batch.sequence_P, drift_P)
    count_S = zeros_S.index_add(0, batch.sequence_P, counts_P)
    ratio_S = (total_S / count_S.clamp(min=1)).exp()
    return ratio_S[batch.sequence_P] * (lp_P - lp_P.detach()).exp()


def _metrics(lp_P: Tensor, batch: LossBatch) -> dict[str, Tensor]:
    ratio_P = _ratio(lp_P, batch)
    return policy_metrics(lp_P, batch, ratio_P, is_outside(ratio_P, batch))


LOSS = Loss(
    name="gspo",
    about="Policy gradient with one clipped ratio per sequence.",
    formula="-min(s * A, clamp(s, low, high) * A)",
    function=_loss,
    inputs=(
        *POLICY_INPUTS,
        LossInput(
            name="sequence_ratio_mask",
            about="Not 0 for the targets whose ratio counts in the sequence's mean.",
        ),
        *CLIP_INPUTS,
    ),
    options=clip_options(0.8, 1.2),
    metrics=CLIP_METRICS,
    metrics_function=_metrics,
    metric_targets=sampled_targets,
    zero_where="advantages",
    notes="`s` is the sequence's ratio: `sg(exp(mean of lp - q where sequence_ratio_mask is on))`, "
    "times `exp(lp - sg(lp))` for the gradient. The bounds of the official service's `gspo` are "
    "not published; these are those of `ppo`.",
)
