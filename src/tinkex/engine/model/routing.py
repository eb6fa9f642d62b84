"""Which experts each token takes and how much of each, and the gradient through that choice.

Shapes: T tokens of the batch · D hidden · E experts · K experts of a token · N tokens of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.model.spec import ExpertsSpec
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["ExpertRows", "Routing", "route"]


class ExpertRows(NamedTuple):
    """The tokens of one expert in rising order, and at which of its K places each
    token has the expert."""

    expert: int
    row_N: Tensor
    place_N: Tensor


class Routing(NamedTuple):
    """The experts of every token and their weights. `total_T1` is the sum by which the weights were
    divided so that they add up to one; None if they were not."""

    p_TE: Tensor
    expert_TK: Tensor
    weight_TK: Tensor
    total_T1: Tensor | None

    def by_expert(self) -> Iterator[ExpertRows]:
        """Yields the tokens of each expert that has any."""
        per_token = self.expert_TK.shape[1]
        flat = self.expert_TK.flatten()
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=self.p_TE.shape[1]).tolist()
        for expert, some in enumerate(torch.split(order, counts)):
            if len(some):
                yield ExpertRows(expert, some // per_token, some % per_token)

    def backward(self, dweight_TK: Tensor, router_ED: FrozenLinear, dtype: torch.dtype) -> Tensor:
        """Returns the gradient by the routed hidden states, given the gradient by the weights."""
        if self.total_T1 is not None:
            along_T1 = (dweight_TK * self.weight_TK).sum(-1, keepdim=True)
            dweight_TK = (dweight_TK - along_T1) / self.total_T1
        dp_TE = torch.zeros_like(self.p_TE).scatter_(1, self.expert_TK, dweight_TK.to(self.p_TE))
        along_T1 = (dp_TE * self.p_TE).sum(-1, keepdim=True)
        return router_ED.backward([(self.p_TE * (dp_TE - along_T1)).to(dtype)])


def route(x_TD: Tensor, router_ED: FrozenLinear, spec: ExpertsSpec) -> Routing:
    """Chooses the most probable experts of every token and weights them by their probabilities."""
    logits_TE = router_ED.forward(x_TD)
    p_TE = torch.softmax(
        logits_TE.double() if x_TD.dtype == torch.float64 else logits_TE.float(), -1
    )
    weight_TK, expert_TK = p_TE.topk(spec.per_token, dim=-1)
    if not spec.normalizes:
        return Routing(p_TE, expert_TK, weight_TK, None)
    total_T1 = weight_TK.sum(-1, keepdim=True)
    return Routing(p_TE, expert_TK, weight_TK / total_T1, total_T1)
