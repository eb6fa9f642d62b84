"""One adapter's training state: weights, pending gradients, Adam moments, step count.

AdamW as torch.optim.AdamW computes it, over the adapter's one flat tensor:

- gradients of all forward_backward calls since the last step are summed;
- `grad_clip_norm` > 0 scales them down to that global norm over all trained LoRA weights;
- weight decay is decoupled: weights shrink by `learning_rate * weight_decay` before the move;
- a step with no forward_backward since the last one moves nothing at all: no decay, no momentum,
  no step counted (torch's rule for parameters without a gradient). A forward_backward whose
  gradients happen to be zero is an ordinary step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from tinkex.engine.interface import OptimRequest, StateScope
from tinkex.engine.lora.adapter import AdapterWeights
from tinkex.engine.lora.linear import LoraPair

__all__ = ["TrainingState"]

_NORM_WIDTH = 4096
"""Numbers whose squares are summed in float32."""


class TrainingState:
    """An adapter being trained."""

    def __init__(self, weights: AdapterWeights) -> None:
        self.weights = weights
        self.step = 0
        self.pending_backwards = 0
        self.gradient: Tensor | None = None  # pending, flat; None = nothing pending
        self.moments: tuple[Tensor, Tensor] | None = None  # first and second, flat

    @property
    def size_bytes(self) -> int:
        """Memory held: weights, and gradients and moments once they exist."""
        tensors = [self.weights.flat, self.gradient, *(self.moments or ())]
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def copy(self, scope: StateScope) -> TrainingState:
        """The same state in memory of its own on the host, as far as the scope goes."""
        other = TrainingState(AdapterWeights(self.weights.layout, _on_host(self.weights.flat)))
        other.step, other.pending_backwards = self.step, self.pending_backwards
        if self.gradient is not None and scope == "all":
            other.gradient = _on_host(self.gradient)
        if self.moments is not None and scope != "weights":
            first, second = self.moments
            other.moments = _on_host(first), _on_host(second)
        return other

    def trainable_pairs(self, gradient: Tensor) -> dict[str, LoraPair]:
        """The LoRA of every site, with places in `gradient`, flat, to add its gradients to."""
        slots = self.weights.layout.pairs(gradient)
        return {
            site: replace(pair, gradient=slots[site]) for site, pair in self.weights.pairs.items()
        }

    def add_gradient(self, gradient: Tensor, num_requests: int) -> None:
        """Adds a batch's gradient to the pending one; keeps the tensor."""
        if self.gradient is None:
            self.gradient = gradient
        else:
            self.gradient.add_(gradient)
        self.pending_backwards += num_requests

    def apply(self, request: OptimRequest) -> dict[str, float]:
        """Takes one AdamW step and answers its metrics; pending gradients are used up."""
        gradient, self.gradient, self.pending_backwards = self.gradient, None, 0
        if gradient is None:
            return {"grad_norm": 0.0, "skipped": 1.0}
        norm = _norm(gradient)
        if request.grad_clip_norm > 0 and norm > request.grad_clip_norm:
            gradient.mul_(request.grad_clip_norm / (norm + 1e-6))
        if self.moments is None:
            self.moments = (torch.zeros_like(gradient), torch.zeros_like(gradient))
        self.step += 1
        _adamw(self.weights.flat, gradient, self.moments, self.step, request)
        return {"grad_norm": norm}


@torch.no_grad()
def _adamw(
    flat: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    step: int,
    request: OptimRequest,
) -> None:
    """One pass over the memory, where single operations would take eight."""
    adamw(
        [flat],
        [gradient],
        [moments[0]],
        [moments[1]],
        [],
        [torch.tensor(step - 1.0, device=flat.device)],
        fused=True,
        amsgrad=False,
        maximize=False,
        lr=request.learning_rate,
        beta1=request.beta1,
        beta2=request.beta2,
        weight_decay=request.weight_decay,
        eps=request.eps,
    )


def _norm(gradient: Tensor) -> float:
    """The norm, by rows: one sum of millions of squares in float32 loses digits people compare,
    and one in float64 takes as long as the rest of the step."""
    num_rows = gradient.numel() // _NORM_WIDTH
    rows, rest = gradient[: num_rows * _NORM_WIDTH], gradient[num_rows * _NORM_WIDTH :]
    norms = torch.linalg.vector_norm(rows.view(num_rows, _NORM_WIDTH), dim=1)
    return float(torch.linalg.vector_norm(torch.cat([norms, rest]), dtype=torch.float64))


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)
