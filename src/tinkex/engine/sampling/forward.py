"""The lean decoder's forward without gradients: what a sampling step runs.

The same function as `model.Decoder.forward_hidden`, which training runs, in fewer and smaller
steps: nothing is kept for a backward, sums are made in place, weights are packed, and most rows of
a prompt end with the keys and values of the last layer. Tests hold the two together.

Shapes: T rows · D hidden · H heads · K key/value heads · C features of a head · F MLP width ·
P positions · Z pairs of features · N rows that are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.attention.packed import Attention
from tinkex.engine.lora.adapter import expert_site
from tinkex.engine.lora.rows import RowLora
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.routing import route
from tinkex.engine.model.weights import ExpertWeights, LayerWeights, MlpWeights
from tinkex.engine.ops.layer_ops import ACTIVATIONS, rms_scaled_

__all__ = ["InferencePass", "OutputRows"]


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The rows whose last hidden state is needed, and their LoRA."""

    row_N: Tensor
    lora: RowLora


class InferencePass:
    """Runs rows through a decoder; fastest with weights laid out for few rows."""

    def __init__(self, decoder: Decoder) -> None:
        spec = self.spec = decoder.spec
        self._weights = decoder.weights
        self._activation = ACTIVATIONS[spec.activation]
        self._ropes_PZ = [torch.complex(*table) for table in decoder.rope_tables]
        self._eps_1 = torch.full((1,), spec.norm.eps, device=decoder.head_VD.device)

    def hidden(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        attention: Attention,
        lora: RowLora,
        wanted: OutputRows | None = None,
    ) -> Tensor:
        """Returns the last hidden states, normalized for the head: of all rows or of
        the `wanted` ones."""
        rotations_T1Z = [rope_PZ[positions_T].unsqueeze(1) for rope_PZ in self._ropes_PZ]
        x_TD = self._weights.embed(tokens_T)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            rotation_T1Z = rotations_T1Z[self.spec.layers[index].rope]
            normed_TD = self._norm(x_TD, layer.before_attn_D)
            attn_out_TX = self._attend(index, layer, normed_TD, rotation_T1Z, attention, lora)
            if index == last and wanted is not None:
                x_TD, attn_out_TX = (x.index_select(0, wanted.row_N) for x in (x_TD, attn_out_TX))
                lora = wanted.lora
            x_TD.add_(self._norm(_out(index, layer, attn_out_TX, lora), layer.after_attn_D))
            normed_TD = self._norm(x_TD, layer.before_mlp_D)
            x_TD.add_(self._norm(self._mlp(index, layer, normed_TD, lora), layer.after_mlp_D))
        return self._norm(x_TD, self._weights.norm_D)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x_TD: Tensor,
        rotation_T1Z: Tensor,
        attention: Attention,
        lora: RowLora,
    ) -> Tensor:
        spec = self.spec
        qkv = layer.qkv.forward(x_TD)
        lora.add(f"{index}.qkv", x_TD, qkv)
        qkv = qkv.view(x_TD.shape[0], -1, spec.head_dim)
        num_rotated = spec.num_heads + spec.num_kv_heads
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if spec.qk_norm != "none":
            q = self._qk_norm(qk[:, : spec.num_heads], layer.q_norm_C)
            k = self._qk_norm(qk[:, spec.num_heads :], layer.k_norm_C)
            qk = torch.cat([q, k], dim=1)
        qk = _rotate(qk, rotation_T1Z)
        q, k = qk[:, : spec.num_heads], qk[:, spec.num_heads :]
        if spec.query_factor != 1.0:
            q = q * spec.query_factor
        return attention.attend(index, q, k, v, spec.layers[index].window)

    def _mlp(self, index: int, layer: LayerWeights, x_TD: Tensor, lora: RowLora) -> Tensor:
        if isinstance(layer.mlp, ExpertWeights):
            return self._experts(index, layer.mlp, x_TD, lora)
        return self._gated(layer.mlp, (f"{index}.gate_up", f"{index}.down"), x_TD, lora)

    def _gated(
        self, mlp: MlpWeights, sites: tuple[str, str], x_TD: Tensor, lora: RowLora
    ) -> Tensor:
        gate_up = mlp.gate_up.forward(x_TD)
        lora.add(sites[0], x_TD, gate_up)
        act_TF = self._activation.forward(*gate_up.chunk(2, dim=1))
        down_TD = mlp.down.forward(act_TF)
        lora.add(sites[1], act_TF, down_TD)
        return down_TD

    def _experts(self, index: int, mlp: ExpertWeights, x_TD: Tensor, lora: RowLora) -> Tensor:
        assert self.spec.experts is not None, "only layers with experts have such weights"
        routing = route(x_TD, mlp.router_ED, self.spec.experts)
        out_TD = torch.zeros_like(x_TD)
        for expert, row_N, place_N in routing.by_expert():
            sites = expert_site(f"{index}.gate_up", expert), expert_site(f"{index}.down", expert)
            found_ND = self._gated(mlp.experts[expert], sites, x_TD[row_N], lora.select(row_N))
            weight_N = routing.weight_TK[row_N, place_N].to(x_TD.dtype)
            out_TD.index_add_(0, row_N, found_ND.mul_(weight_N[:, None]))
        return out_TD

    def _qk_norm(self, x_THC: Tensor, weight: Tensor | None) -> Tensor:
        if self.spec.qk_norm == "projection":
            return self._norm(x_THC.flatten(1), weight).view(x_THC.shape)
        return self._norm(x_THC, weight)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """`x` scaled to unit root mean square over its last axis, times a weight; `x` itself if
        there is none."""
        if weight is None:
            return x
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        square = torch.addcmul(self._eps_1, length, length, value=1.0 / x.shape[-1])
        return rms_scaled_(wide * square.rsqrt_(), weight, x.dtype)


def _out(index: int, layer: LayerWeights, attn_out_TX: Tensor, lora: RowLora) -> Tensor:
    out_TD = layer.out.forward(attn_out_TX)
    lora.add(f"{index}.out", attn_out_TX, out_TD)
    return out_TD


def _rotate(x_THC: Tensor, rotation_T1Z: Tensor) -> Tensor:
    """`x` rotated by its position's angles, as complex numbers.

    The rotated features are returned in another order, pairs side by side. Queries and keys have
    the same order, so their products do not change.
    """
    half = rotation_T1Z.shape[-1]
    wide = x_THC.float()
    rotated_THZ = torch.complex(wide[..., :half], wide[..., half : 2 * half]).mul_(rotation_T1Z)
    rotated_THR = torch.view_as_real(rotated_THZ).flatten(-2)
    if 2 * half < x_THC.shape[-1]:
        rotated_THR = torch.cat([rotated_THR, wide[..., 2 * half :]], dim=-1)
    return rotated_THR.to(x_THC.dtype)
