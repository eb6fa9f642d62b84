"""One adapter's training state: weights, pending gradients, its optimizer's tensors, step count.

The optimizers themselves are in `update_rules`, their parameters in `tinkex.types.optimizers`. What
is the same for all of them, over the adapter's one flat tensor:

- gradients of all forward_backward calls since the last step are summed;
- `grad_clip_norm` > 0 scales them down to that global norm over all trained LoRA weights;
- an adapter has one optimizer: the one of its first step, or of the state that was loaded;
- a step with no forward_backward since the last one moves nothing at all: no decay, no momentum,
  no step counted (torch's rule for parameters without a gradient). A forward_backward whose
  gradients happen to be zero is an ordinary step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinkex.engine.interface import StateScope
from tinkex.engine.lora.adapter import AdapterWeights
from tinkex.engine.lora.linear import LoraPair
from tinkex.engine.training.update_rules import RULES, UpdateStep, rule_named
from tinkex.engine.validation import check_same_optimizer
from tinkex.types.optimizers import TaggedOptimParams, optimizer_name

__all__ = ["OptimizerState", "TrainingState", "most_training_bytes"]

_NORM_WIDTH = 4096
"""Chunk size: numbers whose squares are summed in float32."""


@dataclass(slots=True)
class OptimizerState:
    """The tensors an optimizer keeps between steps, by name, each as long as the
    adapter's flat tensor."""

    name: str
    tensors: dict[str, Tensor]


class TrainingState:
    """An adapter being trained."""

    def __init__(self, weights: AdapterWeights) -> None:
        self.weights = weights
        self.step = 0
        self.pending_backwards = 0
        self.gradient: Tensor | None = None  # pending, flat; None = nothing pending
        self.optimizer: OptimizerState | None = None  # None before the first step

    @property
    def size_bytes(self) -> int:
        """Memory held, in bytes: weights, and gradients and the optimizer's tensors
        once they exist."""
        kept = () if self.optimizer is None else self.optimizer.tensors.values()
        tensors = [self.weights.flat, self.gradient, *kept]
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def copy(self, scope: StateScope) -> TrainingState:
        """Returns a copy of the state in host memory, as far as the scope goes."""
        other = TrainingState(AdapterWeights(self.weights.layout, _on_host(self.weights.flat)))
        other.step, other.pending_backwards = self.step, self.pending_backwards
        if self.gradient is not None and scope == "all":
            other.gradient = _on_host(self.gradient)
        if self.optimizer is not None and scope != "weights":
            copies = {name: _on_host(each) for name, each in self.optimizer.tensors.items()}
            other.optimizer = OptimizerState(self.optimizer.name, copies)
        return other

    def trainable_pairs(self, gradient: Tensor) -> dict[str, LoraPair]:
        """Returns the LoRA of every site, with views of the flat `gradient` to add gradients to."""
        slots = self.weights.layout.pairs(gradient)
        return {
            site: replace(pair, gradient=slots[site]) for site, pair in self.weights.pairs.items()
        }

    def add_gradient(self, gradient: Tensor, num_requests: int) -> None:
        """Adds a batch's gradient to the pending one; may keep the tensor itself."""
        if self.gradient is None:
            self.gradient = gradient
        else:
            self.gradient.add_(gradient)
        self.pending_backwards += num_requests

    @torch.no_grad()
    def apply(self, params: TaggedOptimParams) -> dict[str, float]:
        """Takes one optimizer step and returns its metrics; pending gradients are used up.

        Raises:
            EngineUserError: the parameters belong to another optimizer than the adapter's.
        """
        rule = rule_named(optimizer_name(params))
        check_same_optimizer(None if self.optimizer is None else self.optimizer.name, rule.name)
        gradient, self.gradient, self.pending_backwards = self.gradient, None, 0
        if gradient is None:
            return {"grad_norm": 0.0, "skipped": 1.0}
        norm = _norm(gradient)
        if params.grad_clip_norm > 0 and norm > params.grad_clip_norm:
            gradient.mul_(params.grad_clip_norm / (norm + 1e-6))
        if self.optimizer is None:
            self.optimizer = OptimizerState(rule.name, rule.new_state(gradient))
        self.step += 1
        layout, flat = self.weights.layout, self.weights.flat
        rule.update(UpdateStep(layout, flat, gradient, self.optimizer.tensors, self.step), params)
        return {"grad_norm": norm}


def most_training_bytes(numel: int) -> int:
    """Maximum memory of an adapter, in bytes: weights, gradients, and the tensors of
    the largest optimizer."""
    return 4 * numel * (2 + max(len(rule.state_names) for rule in RULES.values()))


def _norm(gradient: Tensor) -> float:
    """Returns the norm, summed by rows: one sum of millions of squares in float32 loses digits that
    people compare, and one in float64 takes as long as the rest of the step."""
    num_rows = gradient.numel() // _NORM_WIDTH
    rows, rest = gradient[: num_rows * _NORM_WIDTH], gradient[num_rows * _NORM_WIDTH :]
    norms = torch.linalg.vector_norm(rows.view(num_rows, _NORM_WIDTH), dim=1)
    return float(torch.linalg.vector_norm(torch.cat([norms, rest]), dtype=torch.float64))


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)
