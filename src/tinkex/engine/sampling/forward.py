"""The lean decoder's forward without gradients: what a sampling step runs.

The same function as `model.Decoder.packed_hidden`, which training runs, in fewer and smaller
steps: nothing is kept for a backward, sums are made in place, weights are packed, and most rows of
a prompt end with the keys and values of the last layer. Tests hold the two together.

Shapes: T rows · D hidden · H heads · K key/value heads · C features of a head · F MLP width ·
P positions · Z pairs of features · N rows that are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.packed import Attention
from tinkex.engine.lora.rows import RowLora
from tinkex.engine.model.decoder import Decoder, rope_frequencies
from tinkex.engine.model.layer import LayerWeights

__all__ = ["InferencePass", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows whose last hidden state is asked for, and their LoRA."""

    row_N: Tensor
    lora: RowLora


class InferencePass:
    """Runs rows through a decoder; fastest with weights laid out for few rows."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self._weights = decoder.weights
        self._turns_PZ = _turns(decoder)
        self._eps_1 = torch.full((1,), decoder.config.norm_eps, device=decoder.head_VD.device)

    def hidden(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        attention: Attention,
        lora: RowLora,
        wanted: Wanted | None = None,
    ) -> Tensor:
        """The last hidden states, normed, ready for the head: of all rows or those wanted."""
        turn_T1Z = self._turns_PZ[positions_T].unsqueeze(1)
        x_TD = F.embedding(tokens_T, self._weights.embed_VD)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            normed_TD = self._norm(x_TD, layer.attn_norm_D)
            seen_TX = self._seen(index, layer, normed_TD, turn_T1Z, attention, lora)
            if index == last and wanted is not None:
                x_TD, seen_TX = (x.index_select(0, wanted.row_N) for x in (x_TD, seen_TX))
                lora = wanted.lora
            x_TD.add_(_out(index, layer, seen_TX, lora))
            normed_TD = self._norm(x_TD, layer.mlp_norm_D)
            x_TD.add_(_mlp(index, layer, normed_TD, lora))
        return self._norm(x_TD, self._weights.norm_D)

    def _seen(
        self,
        index: int,
        layer: LayerWeights,
        x_TD: Tensor,
        turn_T1Z: Tensor,
        attention: Attention,
        lora: RowLora,
    ) -> Tensor:
        config = self.config
        qkv = layer.qkv.forward(x_TD)
        lora.add(f"{index}.qkv", x_TD, qkv)
        qkv = qkv.view(x_TD.shape[0], -1, config.head_dim)
        num_turned = config.num_heads + config.num_kv_heads
        qk, v = qkv[:, :num_turned], qkv[:, num_turned:]
        if layer.q_norm_C is not None and layer.k_norm_C is not None:
            q = self._norm(qk[:, : config.num_heads], layer.q_norm_C)
            k = self._norm(qk[:, config.num_heads :], layer.k_norm_C)
            qk = torch.cat([q, k], dim=1)
        qk = _turn(qk, turn_T1Z)
        q, k = qk[:, : config.num_heads], qk[:, config.num_heads :]
        return attention.attend(index, q, k, v, config.windows[index])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x` scaled to unit root mean square over its last axis, times a weight."""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        square = torch.addcmul(self._eps_1, length, length, value=1.0 / x.shape[-1])
        return (wide * square.rsqrt_()).to(x.dtype).mul_(weight)


def _out(index: int, layer: LayerWeights, seen_TX: Tensor, lora: RowLora) -> Tensor:
    out_TD = layer.out.forward(seen_TX)
    lora.add(f"{index}.out", seen_TX, out_TD)
    return out_TD


def _mlp(index: int, layer: LayerWeights, x_TD: Tensor, lora: RowLora) -> Tensor:
    gate_up = layer.gate_up.forward(x_TD)
    lora.add(f"{index}.gate_up", x_TD, gate_up)
    width = gate_up.shape[1] // 2
    act_TF = F.silu(gate_up[:, :width]).mul_(gate_up[:, width:])
    down_TD = layer.down.forward(act_TF)
    lora.add(f"{index}.down", act_TF, down_TD)
    return down_TD


def _turn(x_THC: Tensor, turn_T1Z: Tensor) -> Tensor:
    """`x` turned by its position's angles, as complex numbers.

    The features come out in another order, pairs side by side. Queries and keys alike, so that
    nobody who multiplies the two can tell.
    """
    half = x_THC.shape[-1] // 2
    wide = x_THC.float()
    turned_THZ = torch.complex(wide[..., :half], wide[..., half:]).mul_(turn_T1Z)
    return torch.view_as_real(turned_THZ).view(x_THC.shape).to(x_THC.dtype)


def _turns(decoder: Decoder) -> Tensor:
    """The angles of every position as complex numbers of length one."""
    config = decoder.config
    positions = torch.arange(config.context_length, dtype=torch.float32)
    angles_PZ = torch.outer(positions, rope_frequencies(config.rope, config.head_dim))
    return torch.complex(angles_PZ.cos(), angles_PZ.sin()).to(decoder.head_VD.device)
