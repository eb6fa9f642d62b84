"""One decoder layer: attention and MLP, forward and backward.

The forward leaves on a tape what the backward cannot cheaply make again: the inputs of the two
norms, queries, keys and values, what attention saw, and gate and up. Norms and activations are
computed a second time.

Shapes: T tokens of the batch · D hidden · H heads · K key/value heads · J = H + K · C features of
a head · F MLP width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.training import AttentionTape, TrainingAttention
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import lora_linear, lora_linear_backward
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.ops.layer_ops import (
    rms_norm,
    rms_norm_backward,
    rms_unit,
    swiglu,
    swiglu_backward,
)
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["Layer", "LayerTape", "LayerWeights"]


@dataclass(slots=True)
class LayerWeights:
    """One layer's frozen weights; q, k, v and gate, up are stacked to one matrix each."""

    attn_norm_D: Tensor
    qkv: FrozenLinear
    out: FrozenLinear
    mlp_norm_D: Tensor
    gate_up: FrozenLinear
    down: FrozenLinear
    q_norm_C: Tensor | None = None
    k_norm_C: Tensor | None = None


class _AttentionTape(NamedTuple):
    x_TD: Tensor
    inverse_T1: Tensor
    qk_TJC: Tensor | None  # before their norm, if they have one
    qk_inverse_TJ1: Tensor | None
    inner: AttentionTape
    seen_TD: Tensor
    qkv_downs: list[Tensor]
    out_downs: list[Tensor]


class _MlpTape(NamedTuple):
    x_TD: Tensor
    inverse_T1: Tensor
    gate_up_T2F: Tensor
    gate_up_downs: list[Tensor]
    down_downs: list[Tensor]


class LayerTape(NamedTuple):
    """What a layer's forward leaves for its backward."""

    attention: _AttentionTape
    mlp: _MlpTape


class Layer:
    """A frozen layer of a decoder."""

    def __init__(self, index: int, config: ModelConfig, weights: LayerWeights) -> None:
        self._index, self._config, self._weights = index, config, weights
        self._window = config.windows[index]
        self._num_turned = config.num_heads + config.num_kv_heads
        self._qk_norm_JC = None
        if weights.q_norm_C is not None and weights.k_norm_C is not None:
            q_norm_HC = weights.q_norm_C.expand(config.num_heads, -1)
            k_norm_KC = weights.k_norm_C.expand(config.num_kv_heads, -1)
            self._qk_norm_JC = torch.cat([q_norm_HC, k_norm_KC])

    def forward(
        self, x_TD: Tensor, attention: TrainingAttention, lora: LoraBatch
    ) -> tuple[Tensor, LayerTape]:
        """What leaves the layer, and the tape for its backward."""
        x_TD, attention_tape = self._attention(x_TD, attention, lora)
        x_TD, mlp_tape = self._mlp(x_TD, lora)
        return x_TD, LayerTape(attention_tape, mlp_tape)

    def backward(
        self, dy_TD: Tensor, tape: LayerTape, attention: TrainingAttention, lora: LoraBatch
    ) -> Tensor:
        """The gradient by the layer's input; LoRA's are added to its pairs'."""
        dx_TD = self._mlp_backward(dy_TD, tape.mlp, lora)
        return self._attention_backward(dx_TD, tape.attention, attention, lora)

    def _attention(
        self, x_TD: Tensor, attention: TrainingAttention, lora: LoraBatch
    ) -> tuple[Tensor, _AttentionTape]:
        config, weights = self._config, self._weights
        normed_TD, inverse_T1 = rms_norm(x_TD, weights.attn_norm_D, config.norm_eps)
        qkv, qkv_downs = lora_linear(normed_TD, weights.qkv, lora.at(f"{self._index}.qkv"))
        qkv = torch.unflatten(qkv, -1, (-1, config.head_dim))
        qk_TJC, v_TKC = qkv[:, : self._num_turned], qkv[:, self._num_turned :]
        kept_TJC, qk_inverse_TJ1 = None, None
        if self._qk_norm_JC is not None:
            kept_TJC = qk_TJC
            qk_TJC, qk_inverse_TJ1 = rms_norm(qk_TJC, self._qk_norm_JC, config.norm_eps)
        seen_TD, inner = attention.forward(qk_TJC, v_TKC, self._window)
        out_TD, out_downs = lora_linear(seen_TD, weights.out, lora.at(f"{self._index}.out"), x_TD)
        tape = _AttentionTape(
            x_TD, inverse_T1, kept_TJC, qk_inverse_TJ1, inner, seen_TD, qkv_downs, out_downs
        )
        return out_TD, tape

    def _attention_backward(
        self,
        dy_TD: Tensor,
        tape: _AttentionTape,
        attention: TrainingAttention,
        lora: LoraBatch,
    ) -> Tensor:
        weights = self._weights
        segments = lora.at(f"{self._index}.out")
        dseen_TD = lora_linear_backward(
            [dy_TD], tape.seen_TD, weights.out, segments, tape.out_downs
        )
        found = attention.backward(dseen_TD, tape.inner, self._window)
        dq_THC, dk_TKC = self._qk_norm_backward(found.q_THC, found.k_TKC, tape)
        unit_TD = rms_unit(tape.x_TD, tape.inverse_T1)
        normed_TD = unit_TD.to(dy_TD.dtype) * weights.attn_norm_D
        dnormed_TD = lora_linear_backward(
            [dq_THC.flatten(1), dk_TKC.flatten(1), found.v_TKC.flatten(1)],
            normed_TD,
            weights.qkv,
            lora.at(f"{self._index}.qkv"),
            tape.qkv_downs,
        )
        return rms_norm_backward(dnormed_TD, unit_TD, tape.inverse_T1, weights.attn_norm_D, dy_TD)

    def _qk_norm_backward(
        self, dq_THC: Tensor, dk_TKC: Tensor, tape: _AttentionTape
    ) -> tuple[Tensor, Tensor]:
        """The backward of the norms of queries and keys, if they have one."""
        if tape.qk_TJC is None or tape.qk_inverse_TJ1 is None or self._qk_norm_JC is None:
            return dq_THC, dk_TKC
        unit_TJC = rms_unit(tape.qk_TJC, tape.qk_inverse_TJ1)
        num_heads = self._config.num_heads
        heads = (slice(num_heads), slice(num_heads, None))
        dq_THC, dk_TKC = (
            rms_norm_backward(
                dx, unit_TJC[:, some], tape.qk_inverse_TJ1[:, some], self._qk_norm_JC[some]
            )
            for dx, some in zip((dq_THC, dk_TKC), heads, strict=True)
        )
        return dq_THC, dk_TKC

    def _mlp(self, x_TD: Tensor, lora: LoraBatch) -> tuple[Tensor, _MlpTape]:
        weights = self._weights
        normed_TD, inverse_T1 = rms_norm(x_TD, weights.mlp_norm_D, self._config.norm_eps)
        segments = lora.at(f"{self._index}.gate_up")
        gate_up_T2F, gate_up_downs = lora_linear(normed_TD, weights.gate_up, segments)
        active_TF = swiglu(*gate_up_T2F.chunk(2, dim=-1))
        segments = lora.at(f"{self._index}.down")
        out_TD, down_downs = lora_linear(active_TF, weights.down, segments, x_TD)
        return out_TD, _MlpTape(x_TD, inverse_T1, gate_up_T2F, gate_up_downs, down_downs)

    def _mlp_backward(self, dy_TD: Tensor, tape: _MlpTape, lora: LoraBatch) -> Tensor:
        weights = self._weights
        gate_TF, up_TF = tape.gate_up_T2F.chunk(2, dim=-1)
        silu_TF = F.silu(gate_TF)
        dactive_TF = lora_linear_backward(
            [dy_TD],
            silu_TF * up_TF,
            weights.down,
            lora.at(f"{self._index}.down"),
            tape.down_downs,
        )
        dgate_up = swiglu_backward(dactive_TF, gate_TF, up_TF, silu_TF)
        unit_TD = rms_unit(tape.x_TD, tape.inverse_T1)
        dnormed_TD = lora_linear_backward(
            dgate_up,
            unit_TD.to(dy_TD.dtype) * weights.mlp_norm_D,
            weights.gate_up,
            lora.at(f"{self._index}.gate_up"),
            tape.gate_up_downs,
        )
        return rms_norm_backward(dnormed_TD, unit_TD, tape.inverse_T1, weights.mlp_norm_D, dy_TD)
