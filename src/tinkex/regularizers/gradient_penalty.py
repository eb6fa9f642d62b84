"""Gradient penalty: holds the norm of the loss's gradient by the logprobs near a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tinkex.regularizers.interface import Regularizer, RegularizerBatch, check_number

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GradientPenalty"]


@dataclass(frozen=True, kw_only=True)
class GradientPenalty(Regularizer):
    """`(norm - target_norm)**2`, with the norm of the loss's gradient by all logprobs.

    The loss must be differentiable twice. Of a loss that is linear in the logprobs, such as
    cross_entropy, the penalty is constant: it is reported, and has no gradient.

    >>> GradientPenalty(weight=0.1, target_norm=1.0).name
    'gradient_penalty'

    Raises:
        ValidationError: the target is negative.
    """

    kind: ClassVar[str] = "gradient_penalty"

    target_norm: float = 0.0

    def _check(self) -> None:
        check_number(self.kind, "target_norm", self.target_norm, 0.0, math.inf)

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The squared distance of the norm from its target."""
        import torch

        slopes = _slopes(batch)
        norm: Tensor = (
            torch.linalg.vector_norm(torch.cat(slopes)) if slopes else batch.loss.new_zeros(())
        )
        return (norm - self.target_norm).square()


def _slopes(batch: RegularizerBatch) -> list[Tensor]:
    """The loss's derivatives by the logprobs it depends on, themselves differentiable."""
    import torch

    if not batch.loss.requires_grad:
        return []
    slopes = torch.autograd.grad(
        batch.loss, list(batch.logprobs), create_graph=True, allow_unused=True
    )
    return [each.reshape(-1) for each in slopes if each is not None]
