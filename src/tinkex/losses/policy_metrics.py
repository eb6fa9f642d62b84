"""What the policy-gradient losses report: how far the model is from the sampler, and clipping.

Targets with a recorded logprob of 0 and an advantage of 0 are those of the prompt, for which
nothing was sampled; they do not count.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import LossMetric

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CLIP_METRICS", "POLICY_METRICS", "policy_metrics", "sampled_targets"]

_MAX_DRIFT = 60.0
"""Differences of logprobs count up to this, so that no ratio is infinite."""

POLICY_METRICS = (
    LossMetric(
        name="kl_sample_train_k1:mean",
        about="Estimate of KL(sampler || model) by `q - lp`: unbiased, may be negative.",
    ),
    LossMetric(
        name="kl_sample_train_k3:mean",
        about="Estimate of the same by `r - 1 - log r`: never negative, less noise.",
    ),
    LossMetric(name="ratio:mean", about="Mean of the probability ratio that the loss uses."),
    LossMetric(name="ratio:max", about="Largest one."),
    LossMetric(
        name="entropy_sampler:mean",
        about="Estimate of the sampler's entropy per token by `-q`, in nats.",
    ),
)

CLIP_METRICS = (
    *POLICY_METRICS,
    LossMetric(name="clipped:mean", about="Share of targets whose ratio is outside its bounds."),
)


def sampled_targets(batch: LossBatch) -> Tensor:
    """Which targets count: those that were sampled."""
    return (batch.arrays_P["logprobs"] != 0) | (batch.arrays_P["advantages"] != 0)


def policy_metrics(
    lp_P: Tensor, batch: LossBatch, ratio_P: Tensor | None = None, clipped_P: Tensor | None = None
) -> dict[str, Tensor]:
    """The metrics of each target. Without `ratio_P`, the ratio is that of the target itself."""
    old_P = batch.arrays_P["logprobs"]
    drift_P = (lp_P - old_P).clamp(-_MAX_DRIFT, _MAX_DRIFT)
    own_P = drift_P.exp()
    ratio_P = own_P if ratio_P is None else ratio_P.clamp(max=own_P.new_tensor(_MAX_DRIFT).exp())
    found = {
        "kl_sample_train_k1:mean": old_P - lp_P,
        "kl_sample_train_k3:mean": own_P - 1 - drift_P,
        "ratio:mean": ratio_P,
        "ratio:max": ratio_P,
        "entropy_sampler:mean": -old_P,
    }
    return found if clipped_P is None else {**found, "clipped:mean": clipped_P.to(lp_P.dtype)}
