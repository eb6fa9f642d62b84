"""The lean decoder: any model that a `DecoderSpec` describes.

A new architecture starts in `families`, or with a new field of `DecoderSpec`.

One batch is one row of tokens, all sequences packed end to end. The base weights are frozen
plain tensors; LoRA comes from outside, per batch. Sampling runs the same function in fewer steps
(`sampling.forward`); tests hold the two together.

Shapes: T tokens of the batch · D hidden · V vocabulary · H heads · K key/value heads ·
C features of a head · F MLP width.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Protocol

import torch
from torch import Tensor

from tinkex.engine.attention.training import training_attention
from tinkex.engine.lora.adapter import (
    HEAD_SITE,
    ExpertsParameter,
    LoraBatch,
    LoraGroup,
    LoraTarget,
)
from tinkex.engine.model.layer import Layer, LayerTape
from tinkex.engine.model.rope import RopeTable, rope_table
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import DecoderWeights
from tinkex.engine.ops.layer_ops import Angles, rms_norm, rms_norm_backward, rms_unit
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["Backbone", "Decoder"]


class Backbone(Protocol):
    """The interface that training needs of a base model: packed hidden states, a
    head, and LoRA sites."""

    groups: list[LoraGroup]
    head: FrozenLinear
    head_VD: Tensor
    num_parameters: int

    def forward_hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        """Returns the last hidden states [T, D] of whole sequences, packed end to end."""
        ...

    def forward_with_backward(
        self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, Callable[[Tensor], None]]:
        """Returns the same hidden states and their backward.

        The backward takes the gradient by the hidden states and adds those of the LoRA weights
        to the gradients of their pairs. It can be called once.
        """
        ...


class Decoder:
    """A frozen decoder that runs packed batches."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights) -> None:
        self.spec = spec
        self.groups = _lora_groups(spec)
        self.num_parameters = weights.num_parameters()
        self.rope_tables = _rope_tables(spec, weights.embed_VD.device)
        self._tables = [_angle_tables(each, spec, weights.embed_VD) for each in self.rope_tables]
        self._take(weights)

    def _take(self, weights: DecoderWeights) -> None:
        self.weights = weights
        self.head = weights.head
        self.head_VD = weights.head.weight_OD
        self._layers = [Layer(i, self.spec, each) for i, each in enumerate(weights.layers)]

    def with_packed_weights(self) -> Decoder:
        """Returns this decoder with a second copy of its weights, which makes small batches faster.

        The results are the same. The copy takes as much memory as the weights; there is no copy
        where it would not help.
        """
        other = copy(self)
        other._take(self.weights.packed())
        return other

    @torch.no_grad()
    def forward_hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        """The last hidden states of whole sequences, packed end to end, ready for the head."""
        ropes = self._angles(lengths)
        attention = training_attention(lengths, ropes, self.spec.query_scale, kept_bytes=0)
        x_TD = self.weights.embed(tokens_T)
        for layer in self._layers:
            x_TD, _ = layer.forward(x_TD, attention, lora)
        return rms_norm(x_TD, self.weights.norm_D, self.spec.norm.eps)[0]

    @torch.no_grad()
    def forward_with_backward(
        self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The last hidden states of whole sequences, packed end to end, and the backward."""
        attention = training_attention(lengths, self._angles(lengths), self.spec.query_scale)
        tapes: list[LayerTape] = []
        x_TD = self.weights.embed(tokens_T)
        for layer in self._layers:
            x_TD, tape = layer.forward(x_TD, attention, lora)
            tapes.append(tape)
        hidden_TD, inverse_T1 = rms_norm(x_TD, self.weights.norm_D, self.spec.norm.eps)

        @torch.no_grad()
        def backward(dhidden_TD: Tensor) -> None:
            unit_TD = rms_unit(x_TD, inverse_T1)
            dx_TD = rms_norm_backward(dhidden_TD, unit_TD, inverse_T1, self.weights.norm_D)
            for layer in reversed(self._layers):
                dx_TD = layer.backward(dx_TD, tapes.pop(), attention, lora)

        return hidden_TD, backward

    def _angles(self, lengths: list[int]) -> list[Angles]:
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        positions_T = positions_T.to(self.head_VD.device)
        return [
            Angles(cos_PC[positions_T].unsqueeze(1), sin_PR[positions_T].unsqueeze(1))
            for cos_PC, sin_PR in self._tables
        ]


def _lora_groups(spec: DecoderSpec) -> list[LoraGroup]:
    groups = []
    for i in range(spec.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        groups += [
            LoraGroup(f"{i}.qkv", "attn", _qkv_targets(spec, attn)),
            LoraGroup(
                f"{i}.out",
                "attn",
                (LoraTarget(f"{attn}.o_proj", spec.query_width, spec.hidden_size),),
            ),
            LoraGroup(f"{i}.gate_up", "mlp", _gate_up_targets(spec, mlp)),
            LoraGroup(f"{i}.down", "mlp", (_down_target(spec, mlp),)),
        ]
    head = LoraTarget("lm_head", spec.hidden_size, spec.vocab_size)
    return [*groups, LoraGroup(HEAD_SITE, "unembed", (head,))]


def _qkv_targets(spec: DecoderSpec, prefix: str) -> tuple[LoraTarget, ...]:
    hidden, q, kv = spec.hidden_size, spec.query_width, spec.key_width
    if spec.has_fused_projections:
        return (LoraTarget(f"{prefix}.qkv_proj", hidden, q + 2 * kv),)
    sizes = (("q", q), ("k", kv), ("v", kv))
    return tuple(LoraTarget(f"{prefix}.{name}_proj", hidden, size) for name, size in sizes)


def _gate_up_targets(spec: DecoderSpec, prefix: str) -> tuple[LoraTarget, ...]:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    if spec.experts is not None:
        # peft wraps the experts once for each of their parameters, this one innermost.
        parameter = ExpertsParameter("mlp.experts.gate_up_proj", spec.experts.count)
        return (LoraTarget(f"{prefix}.experts.base_layer", hidden, 2 * wide, parameter),)
    if spec.has_fused_projections:
        return (LoraTarget(f"{prefix}.gate_up_proj", hidden, 2 * wide),)
    return tuple(LoraTarget(f"{prefix}.{name}_proj", hidden, wide) for name in ("gate", "up"))


def _down_target(spec: DecoderSpec, prefix: str) -> LoraTarget:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    if spec.experts is not None:
        parameter = ExpertsParameter("mlp.experts.down_proj", spec.experts.count)
        return LoraTarget(f"{prefix}.experts", wide, hidden, parameter)
    return LoraTarget(f"{prefix}.down_proj", wide, hidden)


def _rope_tables(spec: DecoderSpec, device: torch.device) -> list[RopeTable]:
    tables = [rope_table(rope, spec.head_dim, spec.context_length) for rope in spec.ropes]
    return [RopeTable(cos_PZ.to(device), sin_PZ.to(device)) for cos_PZ, sin_PZ in tables]


def _angle_tables(table: RopeTable, spec: DecoderSpec, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines [P, C] and sines [P, R] of all positions, as `Angles` have them."""
    cos_PC, sin_PR = table.cos_PZ.repeat(1, 2), table.sin_PZ.repeat(1, 2)
    num_fixed = spec.head_dim - cos_PC.shape[1]
    if num_fixed:
        cos_PC = torch.cat([cos_PC, cos_PC.new_ones(len(cos_PC), num_fixed)], dim=1)
    return cos_PC.to(like), sin_PR.to(like)
