"""A mixture of experts without norms and residual, forward and backward.

Every token goes through a few experts, each of which has its own LoRA. Tokens of several adapters
meet in one expert: those of each are neighbours there as they are in the batch, so an expert sees
a smaller batch of the same adapters.

Shapes: T tokens of the batch · D hidden · F width of an expert · K experts of a token · N tokens of
an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import LoraBatch, expert_site
from tinkex.engine.lora.linear import lora_linear, lora_linear_backward
from tinkex.engine.model.routing import ExpertRows, Routing, route
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import ExpertWeights
from tinkex.engine.ops.layer_ops import ACTIVATIONS

__all__ = ["ExpertsBlock", "ExpertsTape"]


class _ExpertTape(NamedTuple):
    rows: ExpertRows
    lora: LoraBatch
    gate_up_N2F: Tensor
    gate_up_downs: list[Tensor]
    down_downs: list[Tensor]


class ExpertsTape(NamedTuple):
    """Tensors that the forward keeps for the backward."""

    routing: Routing
    experts: list[_ExpertTape]


class ExpertsBlock:
    """The mixture of experts of one frozen layer. The router has no LoRA."""

    def __init__(self, index: int, spec: DecoderSpec, weights: ExpertWeights) -> None:
        assert spec.experts is not None, "only layers with experts have such weights"
        self._weights, self._spec = weights, spec.experts
        self._gate_up_site, self._down_site = f"{index}.gate_up", f"{index}.down"
        self._activation = ACTIVATIONS[spec.activation]

    def forward(
        self, x_TD: Tensor, lora: LoraBatch, plus_TD: Tensor | None
    ) -> tuple[Tensor, ExpertsTape]:
        """Returns the output of the experts for `x`, added to `plus` if given, and the tape."""
        routing = route(x_TD, self._weights.router_ED, self._spec)
        out_TD = torch.zeros_like(x_TD) if plus_TD is None else plus_TD.clone()
        tapes = []
        for rows in routing.by_expert():
            out_ND, tape = self._expert(x_TD[rows.row_N], rows, routing, lora.select(rows.row_N))
            out_TD.index_add_(0, rows.row_N, out_ND)
            tapes.append(tape)
        return out_TD, ExpertsTape(routing, tapes)

    def backward(
        self, dy_TD: Tensor, x_TD: Callable[[], Tensor], tape: object, lora: LoraBatch
    ) -> Tensor:
        """Returns the gradient by `x`, which is recomputed when it is needed."""
        assert isinstance(tape, ExpertsTape), "made by `forward`"
        entered_TD, routing = x_TD(), tape.routing
        dx_TD = torch.zeros_like(entered_TD)
        dweight_TK = torch.zeros_like(routing.weight_TK)
        for each in tape.experts:
            row_N, place_N = each.rows.row_N, each.rows.place_N
            dx_ND, dweight_N = self._expert_backward(
                dy_TD[row_N], entered_TD[row_N], each, routing.weight_TK[row_N, place_N]
            )
            dx_TD.index_add_(0, row_N, dx_ND)
            dweight_TK[row_N, place_N] = dweight_N.to(dweight_TK)
        return dx_TD.add_(routing.backward(dweight_TK, self._weights.router_ED, dx_TD.dtype))

    def _expert(
        self, x_ND: Tensor, rows: ExpertRows, routing: Routing, lora: LoraBatch
    ) -> tuple[Tensor, _ExpertTape]:
        expert = self._weights.experts[rows.expert]
        segments = lora.at(expert_site(self._gate_up_site, rows.expert))
        gate_up_N2F, gate_up_downs = lora_linear(x_ND, expert.gate_up, segments)
        active_NF = self._activation.forward(*gate_up_N2F.chunk(2, dim=-1))
        # Weighted before the product, which is linear, and not after it: the backward then has the
        # gradient by the weight without the product's result.
        weight_N = routing.weight_TK[rows.row_N, rows.place_N].to(active_NF.dtype)
        active_NF.mul_(weight_N[:, None])
        segments = lora.at(expert_site(self._down_site, rows.expert))
        out_ND, down_downs = lora_linear(active_NF, expert.down, segments)
        return out_ND, _ExpertTape(rows, lora, gate_up_N2F, gate_up_downs, down_downs)

    def _expert_backward(
        self, dy_ND: Tensor, x_ND: Tensor, tape: _ExpertTape, weight_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradients by the expert's input and by its tokens' weights."""
        index, expert = tape.rows.expert, self._weights.experts[tape.rows.expert]
        gate_NF, up_NF = tape.gate_up_N2F.chunk(2, dim=-1)
        function_NF = self._activation.function(gate_NF)
        active_NF = function_NF * up_NF
        weight_N1 = weight_N[:, None].to(active_NF.dtype)
        dact_NF = lora_linear_backward(
            [dy_ND],
            active_NF * weight_N1,
            expert.down,
            tape.lora.at(expert_site(self._down_site, index)),
            tape.down_downs,
        )
        dweight_N = (dact_NF * active_NF).sum(-1)
        parts = self._activation.backward(dact_NF.mul_(weight_N1), gate_NF, up_NF, function_NF)
        dx_ND = lora_linear_backward(
            [torch.cat(parts, dim=1)],
            x_ND,
            expert.gate_up,
            tape.lora.at(expert_site(self._gate_up_site, index)),
            tape.gate_up_downs,
        )
        return dx_ND, dweight_N
