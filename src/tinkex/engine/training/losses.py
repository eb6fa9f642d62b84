"""The losses, as sums over tokens: what each target contributes, given its logprob.

A loss maps the logprobs of a batch's targets to one number per target; their sum is the loss
and autograd gives its slope. Never a mean, never a normalisation: weights and advantages are
used as sent.

With lp the logprob now, q the one recorded by the sampler, A the advantage, r = exp(lp - q), and
sg(.) for "no gradient through here":

    cross_entropy         -w * lp
    importance_sampling   -r * A
    ppo                   -min(r * A, clamp(r, low, high) * A)                 low 0.8, high 1.2
    cispo                 -sg(clamp(r, low, high)) * lp * A                    low 0.0, high 4.0
    dro                   -(lp * A - beta/2 * (lp - q)^2)                      beta 0.05
    gspo                  -min(s * A, clamp(s, low, high) * A)                 low 0.8, high 1.2
                          s = sg(exp(mean of lp - q where the mask is on)) * exp(lp - sg(lp))

low and high bound the ratio itself; ppo, cispo and gspo also take them per token, as inputs of
the same name. The published gspo bounds are unknown; ours are ppo's.

Shapes: P targets of the batch, all datums in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.validation import LOSSES

__all__ = ["LossInputs", "is_separable", "loss_and_slope", "may_have_slope", "merge_config"]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The loss inputs of all targets of a batch, and which sequence each target is of."""

    arrays_P: dict[str, Tensor]
    sequence_P: Tensor
    num_sequences: int
    config: dict[str, float]

    def select(self, place_P: Tensor) -> LossInputs:
        """The inputs of these targets alone."""
        arrays = {name: array[place_P] for name, array in self.arrays_P.items()}
        return LossInputs(arrays, self.sequence_P[place_P], self.num_sequences, self.config)


def merge_config(loss_fn: str, given: dict[str, float | str]) -> dict[str, float]:
    """The loss's numbers: the given ones over the defaults."""
    return {**LOSSES[loss_fn].config, **{name: float(value) for name, value in given.items()}}


def is_separable(loss_fn: str) -> bool:
    """Whether a target's loss depends on its own logprob alone."""
    return loss_fn != "gspo"


def may_have_slope(loss_fn: str, inputs: LossInputs) -> Tensor:
    """Whether each target's logprob can matter to the loss, known before any logprob is."""
    if loss_fn == "dro":
        return torch.ones_like(inputs.sequence_P, dtype=torch.bool)
    factor = "weights" if loss_fn == "cross_entropy" else "advantages"
    return inputs.arrays_P[factor] != 0


def loss_and_slope(loss_fn: str, lp_P: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Each target's loss, and the derivative of their sum by each logprob."""
    if loss_fn == "cross_entropy":
        # By far the commonest, and its slope is known without asking autograd.
        weights_P = inputs.arrays_P["weights"]
        return -weights_P * lp_P, -weights_P
    with torch.enable_grad():
        lp_P = lp_P.detach().requires_grad_(True)
        loss_P = _FUNCTIONS[loss_fn](lp_P, inputs)
        (slope_P,) = torch.autograd.grad(loss_P.sum(), lp_P)
    return loss_P.detach(), slope_P


def _importance_sampling(lp_P: Tensor, inputs: LossInputs) -> Tensor:
    ratio_P = torch.exp(lp_P - inputs.arrays_P["logprobs"])
    return -ratio_P * inputs.arrays_P["advantages"]


def _ppo(lp_P: Tensor, inputs: LossInputs) -> Tensor:
    ratio_P = torch.exp(lp_P - inputs.arrays_P["logprobs"])
    return _clipped(ratio_P, inputs)


def _cispo(lp_P: Tensor, inputs: LossInputs) -> Tensor:
    ratio_P = torch.exp(lp_P.detach() - inputs.arrays_P["logprobs"])
    return -_clamp(ratio_P, inputs) * lp_P * inputs.arrays_P["advantages"]


def _dro(lp_P: Tensor, inputs: LossInputs) -> Tensor:
    drift_P = lp_P - inputs.arrays_P["logprobs"]
    gain_P = lp_P * inputs.arrays_P["advantages"]
    return -(gain_P - 0.5 * inputs.config["beta"] * drift_P.square())


def _gspo(lp_P: Tensor, inputs: LossInputs) -> Tensor:
    counts_P = (inputs.arrays_P["sequence_ratio_mask"] != 0).to(lp_P.dtype)
    drift_P = (lp_P.detach() - inputs.arrays_P["logprobs"]) * counts_P
    zeros_S = torch.zeros(inputs.num_sequences, dtype=lp_P.dtype, device=lp_P.device)
    total_S = zeros_S.index_add(0, inputs.sequence_P, drift_P)
    count_S = zeros_S.index_add(0, inputs.sequence_P, counts_P)
    ratio_S = torch.exp(total_S / count_S.clamp(min=1))
    ratio_P = ratio_S[inputs.sequence_P] * torch.exp(lp_P - lp_P.detach())
    return _clipped(ratio_P, inputs)


def _clipped(ratio_P: Tensor, inputs: LossInputs) -> Tensor:
    advantages_P = inputs.arrays_P["advantages"]
    return -torch.minimum(ratio_P * advantages_P, _clamp(ratio_P, inputs) * advantages_P)


def _clamp(ratio_P: Tensor, inputs: LossInputs) -> Tensor:
    low_P = inputs.arrays_P.get("clip_low_threshold")
    high_P = inputs.arrays_P.get("clip_high_threshold")
    low = inputs.config["clip_low_threshold"] if low_P is None else low_P
    high = inputs.config["clip_high_threshold"] if high_P is None else high_P
    return torch.minimum(
        torch.maximum(ratio_P, torch.as_tensor(low, dtype=ratio_P.dtype)),
        torch.as_tensor(high, dtype=ratio_P.dtype),
    )


_FUNCTIONS: dict[str, Callable[[Tensor, LossInputs], Tensor]] = {
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}
