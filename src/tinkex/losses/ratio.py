"""What the policy-gradient losses share: their inputs, and the clipped probability ratio.

Shapes: P targets of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.losses.batch import LossBatch
from tinkex.losses.declaration import LossInput, LossOption

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CLIP_INPUTS",
    "POLICY_INPUTS",
    "clamp_ratio",
    "clip_options",
    "clipped_objective",
    "is_outside",
]

_LOW, _HIGH = "clip_low_threshold", "clip_high_threshold"

POLICY_INPUTS = (
    LossInput(name="logprobs", about="Logprobs of the targets as the sampler recorded them, `q`."),
    LossInput(name="advantages", about="Advantage of each target, `A`."),
)

CLIP_INPUTS = (
    LossInput(name=_LOW, about="`low` per target, in place of the option.", is_required=False),
    LossInput(name=_HIGH, about="`high` per target, in place of the option.", is_required=False),
)


def clip_options(low: float, high: float) -> tuple[LossOption, ...]:
    """Bounds of the ratio itself, with these defaults."""
    return (
        LossOption(
            name=_LOW,
            about="Lower bound of the probability ratio itself, `low`.",
            default=low,
            at_most=_HIGH,
        ),
        LossOption(
            name=_HIGH,
            about="Upper bound of the probability ratio itself, `high`.",
            default=high,
        ),
    )


def clipped_objective(ratio_P: Tensor, batch: LossBatch) -> Tensor:
    """The pessimistic one of the plain and the clipped objective, as a loss."""
    advantages_P = batch.arrays_P["advantages"]
    return -(ratio_P * advantages_P).minimum(clamp_ratio(ratio_P, batch) * advantages_P)


def clamp_ratio(ratio_P: Tensor, batch: LossBatch) -> Tensor:
    """The ratio within its bounds: those per target where they are given, else the options."""
    low_P = _bound(_LOW, ratio_P, batch)
    return ratio_P.maximum(low_P).minimum(_bound(_HIGH, ratio_P, batch))


def is_outside(ratio_P: Tensor, batch: LossBatch) -> Tensor:
    """Whether each ratio is outside its bounds."""
    return clamp_ratio(ratio_P, batch) != ratio_P


def _bound(name: str, ratio_P: Tensor, batch: LossBatch) -> Tensor:
    given_P = batch.arrays_P.get(name)
    return ratio_P.new_tensor(batch.config[name]) if given_P is None else given_P.to(ratio_P.dtype)
