"""The MLP of a layer without its norms and residual, forward and backward.

Shapes: T tokens of the batch · D hidden · F MLP width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import lora_linear, lora_linear_backward
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import MlpWeights
from tinkex.engine.ops.layer_ops import ACTIVATIONS

__all__ = ["MlpBlock", "MlpTape"]


class MlpTape(NamedTuple):
    """Tensors that the forward keeps for the backward."""

    gate_up_T2F: Tensor
    gate_up_downs: list[Tensor]
    down_downs: list[Tensor]


class MlpBlock:
    """The gated MLP of one frozen layer."""

    def __init__(self, index: int, spec: DecoderSpec, weights: MlpWeights) -> None:
        self._weights = weights
        self._gate_up_site, self._down_site = f"{index}.gate_up", f"{index}.down"
        self._activation = ACTIVATIONS[spec.activation]
        self._is_fused = spec.has_fused_projections

    def forward(
        self, x_TD: Tensor, lora: LoraBatch, plus_TD: Tensor | None
    ) -> tuple[Tensor, MlpTape]:
        """Returns the output of the MLP for `x`, added to `plus` if given, and the tape."""
        weights = self._weights
        gate_up_T2F, gate_up_downs = lora_linear(x_TD, weights.gate_up, lora.at(self._gate_up_site))
        active_TF = self._activation.forward(*gate_up_T2F.chunk(2, dim=-1))
        out_TD, down_downs = lora_linear(active_TF, weights.down, lora.at(self._down_site), plus_TD)
        return out_TD, MlpTape(gate_up_T2F, gate_up_downs, down_downs)

    def backward(
        self, dy_TD: Tensor, x_TD: Callable[[], Tensor], tape: object, lora: LoraBatch
    ) -> Tensor:
        """Returns the gradient by `x`, which is recomputed when it is needed."""
        assert isinstance(tape, MlpTape), "made by `forward`"
        weights = self._weights
        gate_TF, up_TF = tape.gate_up_T2F.chunk(2, dim=-1)
        active_TF = self._activation.function(gate_TF)
        dact_TF = lora_linear_backward(
            [dy_TD], active_TF * up_TF, weights.down, lora.at(self._down_site), tape.down_downs
        )
        parts = list(self._activation.backward(dact_TF, gate_TF, up_TF, active_TF))
        if self._is_fused:  # one LoRA for both
            parts = [torch.cat(parts, dim=1)]
        segments = lora.at(self._gate_up_site)
        return lora_linear_backward(parts, x_TD(), weights.gate_up, segments, tape.gate_up_downs)
