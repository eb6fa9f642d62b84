"""The optimizers: for each, the tensors it keeps and how one step changes an adapter.

A rule is registered under the tag of its parameter struct (`tinkex.types.optimizers`). Its state is
tensors by name, each as long as the adapter's flat tensor and zero before the first step; their
names stand in saved folders. Everything around a step (summing and clipping gradients, counting,
saving) is the same for all of them and lives elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from tinkex.engine.errors import EngineUserError
from tinkex.engine.lora.adapter import LoraLayout
from tinkex.engine.training.muon import add_orthogonalized
from tinkex.types.optimizers import DimuonParams, SgdParams, TaggedAdamParams

__all__ = ["RULES", "UpdateRule", "UpdateStep", "rule_named"]

P = TypeVar("P", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class UpdateStep:
    """One step to take: `weights` and `state` are changed in place, `gradient` may be."""

    layout: LoraLayout
    weights: Tensor
    gradient: Tensor  # clipped
    state: Mapping[str, Tensor]
    number: int  # the first one is 1


@dataclass(frozen=True, slots=True)
class UpdateRule(Generic[P]):
    """One optimizer."""

    params: type[P]
    state_names: tuple[str, ...]
    update: Callable[[UpdateStep, P], None]

    @property
    def name(self) -> str:
        """The tag of the optimizer's parameters."""
        return str(self.params.__struct_config__.tag)

    def new_state(self, like: Tensor) -> dict[str, Tensor]:
        """Returns the optimizer's tensors before the first step."""
        return {name: torch.zeros_like(like) for name in self.state_names}


def _adamw(step: UpdateStep, params: TaggedAdamParams) -> None:
    """AdamW as in torch.optim.AdamW: one pass over memory, where single operations take eight."""
    adamw(
        [step.weights],
        [step.gradient],
        [step.state["first"]],
        [step.state["second"]],
        [],
        [torch.tensor(step.number - 1.0, device=step.weights.device)],
        fused=True,
        amsgrad=False,
        maximize=False,
        lr=params.learning_rate,
        beta1=params.beta1,
        beta2=params.beta2,
        weight_decay=params.weight_decay,
        eps=params.eps,
    )


def _sgd(step: UpdateStep, params: SgdParams) -> None:
    """SGD as in torch.optim.SGD without dampening; the velocity is kept at momentum 0 too."""
    gradient, velocity = step.gradient, step.state["velocity"]
    if params.weight_decay > 0:
        gradient.add_(step.weights, alpha=params.weight_decay)
    velocity.mul_(params.momentum).add_(gradient)
    if params.nesterov:
        velocity = gradient.add_(velocity, alpha=params.momentum)
    step.weights.add_(velocity, alpha=-params.learning_rate)


def _muon(step: UpdateStep, params: DimuonParams) -> None:
    """Muon with Nesterov momentum, applied to every A and B separately."""
    average = step.state["average"].lerp_(step.gradient, 1 - params.beta1)
    direction = step.gradient.lerp_(average, params.beta1)
    weights = [matrix for pair in step.layout.named(step.weights).values() for matrix in pair]
    directions = [matrix for pair in step.layout.named(direction).values() for matrix in pair]
    add_orthogonalized(weights, directions, -params.learning_rate)


_ALL: tuple[UpdateRule[Any], ...] = (
    UpdateRule(TaggedAdamParams, ("first", "second"), _adamw),
    UpdateRule(SgdParams, ("velocity",), _sgd),
    UpdateRule(DimuonParams, ("average",), _muon),
)
RULES: dict[str, UpdateRule[Any]] = {rule.name: rule for rule in _ALL}


def rule_named(name: str) -> UpdateRule[Any]:
    """Returns the optimizer of this name.

    Raises:
        EngineUserError: there is no such optimizer.
    """
    if name not in RULES:
        raise EngineUserError(
            f"The optimizer {name[:100]!r} is not known here. Use one of: {', '.join(RULES)}.",
            code="unknown-optimizer",
            field="optimizer",
            value=name[:100],
        )
    return RULES[name]
