"""The attention of a layer without its norms and residual, forward and backward.

Shapes: T tokens of the batch · D hidden · H heads · K key/value heads · J = H + K · C features of
a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.attention.training import AttentionTape, TrainingAttention
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import lora_linear, lora_linear_backward
from tinkex.engine.model.qk_norm import QkNormTape, qk_norms
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import LayerWeights

__all__ = ["AttentionBlock", "AttentionBlockTape"]


class AttentionBlockTape(NamedTuple):
    """Tensors that the forward keeps for the backward."""

    qk_norm: QkNormTape | None
    inner: AttentionTape
    attn_out_TD: Tensor
    qkv_downs: list[Tensor]
    out_downs: list[Tensor]


class AttentionBlock:
    """The attention of one frozen layer."""

    def __init__(self, index: int, spec: DecoderSpec, weights: LayerWeights) -> None:
        self._weights, self._spec, self._layer = weights, spec, spec.layers[index]
        self._qkv_site, self._out_site = f"{index}.qkv", f"{index}.out"
        self._norms = qk_norms(spec, weights)

    def forward(
        self, x_TD: Tensor, attention: TrainingAttention, lora: LoraBatch, plus_TD: Tensor | None
    ) -> tuple[Tensor, AttentionBlockTape]:
        """Returns the output of attention for `x`, added to `plus` if given, and the tape."""
        weights, layer = self._weights, self._layer
        qkv, qkv_downs = lora_linear(x_TD, weights.qkv, lora.at(self._qkv_site))
        qkv = torch.unflatten(qkv, -1, (-1, self._spec.head_dim))
        num_rotated = self._spec.num_heads + self._spec.num_kv_heads
        qk_TJC, v_TKC = qkv[:, :num_rotated], qkv[:, num_rotated:]
        norm_tape = None
        if self._norms is not None:
            qk_TJC, norm_tape = self._norms.forward(qk_TJC)
        attn_out_TD, inner = attention.forward(qk_TJC, v_TKC, layer.window, layer.rope)
        out_TD, out_downs = lora_linear(attn_out_TD, weights.out, lora.at(self._out_site), plus_TD)
        return out_TD, AttentionBlockTape(norm_tape, inner, attn_out_TD, qkv_downs, out_downs)

    def backward(
        self,
        dy_TD: Tensor,
        x_TD: Callable[[], Tensor],
        tape: AttentionBlockTape,
        attention: TrainingAttention,
        lora: LoraBatch,
    ) -> Tensor:
        """Returns the gradient by `x`, which is recomputed when it is needed."""
        weights, layer = self._weights, self._layer
        dattn_out_TD = lora_linear_backward(
            [dy_TD], tape.attn_out_TD, weights.out, lora.at(self._out_site), tape.out_downs
        )
        dq_THC, dk_TKC, dv_TKC = attention.backward(
            dattn_out_TD, tape.inner, layer.window, layer.rope
        )
        if self._norms is not None and tape.qk_norm is not None:
            dq_THC, dk_TKC = self._norms.backward(dq_THC, dk_TKC, tape.qk_norm)
        parts = [dq_THC.flatten(1), dk_TKC.flatten(1), dv_TKC.flatten(1)]
        if self._spec.has_fused_projections:  # one LoRA for all of them
            parts = [torch.cat(parts, dim=1)]
        segments = lora.at(self._qkv_site)
        return lora_linear_backward(parts, x_TD(), weights.qkv, segments, tape.qkv_downs)
