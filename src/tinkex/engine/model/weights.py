"""The frozen weights of a decoder, layer by layer.

Shapes: D hidden · V vocabulary · C features of a head, or those of all heads · E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["DecoderWeights", "ExpertWeights", "LayerWeights", "MlpWeights"]


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A gated MLP; gate and up are stacked to one matrix."""

    gate_up: FrozenLinear
    down: FrozenLinear

    @property
    def numel(self) -> int:
        """The number of parameters."""
        return self.gate_up.numel + self.down.numel

    def packed(self) -> MlpWeights:
        """Returns the same weights, also laid out for small batches."""
        return MlpWeights(self.gate_up.packed(), self.down.packed())


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts, each a gated MLP, and the router that gives each its tokens."""

    router_ED: FrozenLinear
    experts: tuple[MlpWeights, ...]

    @property
    def numel(self) -> int:
        """The number of parameters."""
        return self.router_ED.numel + sum(expert.numel for expert in self.experts)

    def packed(self) -> ExpertWeights:
        """Returns the same weights, also laid out for small batches."""
        experts = tuple(expert.packed() for expert in self.experts)
        return ExpertWeights(self.router_ED.packed(), experts)


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One layer's frozen weights; q, k and v are stacked to one matrix.

    Norms that the layer does not have are None. Their weights are ready to multiply with: where the
    files hold w for 1 + w, the one is added already.
    """

    qkv: FrozenLinear
    out: FrozenLinear
    mlp: MlpWeights | ExpertWeights
    before_attn_D: Tensor | None
    before_mlp_D: Tensor | None
    after_attn_D: Tensor | None
    after_mlp_D: Tensor | None
    q_norm_C: Tensor | None
    k_norm_C: Tensor | None

    def packed(self) -> LayerWeights:
        """Returns the same weights, also laid out for small batches; those that cannot be
        packed are shared."""
        return replace(
            self,
            qkv=self.qkv.packed(),
            out=self.out.packed(),
            mlp=self.mlp.packed(),
        )

    def numel(self) -> int:
        """The number of parameters in the layer."""
        values = (getattr(self, item.name) for item in fields(self))
        return sum(_numel(value) for value in values)


@dataclass(slots=True)
class DecoderWeights:
    """The frozen base. With tied embeddings the head's weight is `embed_VD`.

    `embed_scale` is in the type of the embeddings, as the published models round it.
    """

    embed_VD: Tensor
    layers: list[LayerWeights]
    norm_D: Tensor
    head: FrozenLinear
    embed_scale: Tensor | None = None

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Returns the input of the first layer, [T, D]."""
        x_TD = F.embedding(tokens_T, self.embed_VD)
        return x_TD if self.embed_scale is None else x_TD.mul_(self.embed_scale)

    def num_parameters(self) -> int:
        """The number of parameters in the base model; a tied head counts once."""
        total = self.embed_VD.numel() + self.norm_D.numel()
        if self.head.weight_OD is not self.embed_VD:
            total += self.head.numel
        return total + sum(layer.numel() for layer in self.layers)

    def packed(self) -> DecoderWeights:
        """Returns the same weights, also laid out for small batches; those that cannot be
        packed are shared."""
        layers = [layer.packed() for layer in self.layers]
        return replace(self, layers=layers, head=self.head.packed())


def _numel(value: FrozenLinear | MlpWeights | ExpertWeights | Tensor | None) -> int:
    if value is None:
        return 0
    return value.numel() if isinstance(value, Tensor) else value.numel
