"""The lean decoder: Llama, SmolLM, Qwen2, Qwen3 and Mistral in one file.

One batch is one row of tokens, all sequences packed end to end. The base weights are frozen
plain tensors; LoRA comes from outside, per batch. Sampling runs the same function in fewer steps
(`inference`); tests hold the two together.

Shapes: T tokens of the batch · D hidden · V vocabulary · H heads · K key/value heads ·
C features of a head · F MLP width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.training import training_attention
from tinkex.engine.lora.adapter import HEAD_SITE, LoraBatch, LoraGroup, LoraTarget
from tinkex.engine.model.config import ModelConfig, RopeConfig
from tinkex.engine.model.layer import Layer, LayerTape, LayerWeights
from tinkex.engine.ops.layer_ops import Angles, rms_norm, rms_norm_backward, rms_unit
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["Backbone", "Decoder", "DecoderWeights", "rope_frequencies"]


class Backbone(Protocol):
    """What training needs of a base model: packed hidden states, a head, and places for LoRA."""

    groups: list[LoraGroup]
    head: FrozenLinear
    head_VD: Tensor
    num_parameters: int

    def packed_hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        """The last hidden states [T, D] of whole sequences, packed end to end."""
        ...

    def packed_pass(
        self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The same, and the backward.

        The backward takes the gradient by the hidden states and adds those of the LoRA weights
        to the gradients of their pairs. It can be called once.
        """
        ...


@dataclass(slots=True)
class DecoderWeights:
    """The frozen base. With tied embeddings the head's weight is `embed_VD`."""

    embed_VD: Tensor
    layers: list[LayerWeights]
    norm_D: Tensor
    head: FrozenLinear

    def num_parameters(self) -> int:
        """How many numbers the base has; a tied head counts once."""
        total = self.embed_VD.numel() + self.norm_D.numel()
        if self.head.weight_OD is not self.embed_VD:
            total += self.head.numel
        for layer in self.layers:
            for item in fields(layer):
                value = getattr(layer, item.name)
                total += value.numel if isinstance(value, FrozenLinear) else _numel(value)
        return total

    def packed(self) -> DecoderWeights:
        """The same weights, laid out for few rows too; what cannot be packed is shared."""
        layers = [
            replace(
                layer,
                qkv=layer.qkv.packed(),
                out=layer.out.packed(),
                gate_up=layer.gate_up.packed(),
                down=layer.down.packed(),
            )
            for layer in self.layers
        ]
        return DecoderWeights(self.embed_VD, layers, self.norm_D, self.head.packed())


class Decoder:
    """A frozen decoder that runs packed batches."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.groups = _lora_groups(config)
        self.num_parameters = weights.num_parameters()
        self._cos_PC, self._sin_PC = _rope_tables(config, weights.embed_VD)
        self._take(weights)

    def _take(self, weights: DecoderWeights) -> None:
        self.weights = weights
        self.head = weights.head
        self.head_VD = weights.head.weight_OD
        self._layers = [Layer(i, self.config, each) for i, each in enumerate(weights.layers)]

    def for_few_rows(self) -> Decoder:
        """This decoder with a second copy of its weights, which makes small batches faster.

        Same results. Takes as much memory again where it helps, none where it would not.
        """
        other = copy(self)
        other._take(self.weights.packed())
        return other

    @torch.no_grad()
    def packed_hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        """The last hidden states of whole sequences, packed end to end, ready for the head."""
        attention = training_attention(lengths, self._angles(lengths), kept_bytes=0)
        x_TD = F.embedding(tokens_T, self.weights.embed_VD)
        for layer in self._layers:
            x_TD, _ = layer.forward(x_TD, attention, lora)
        return rms_norm(x_TD, self.weights.norm_D, self.config.norm_eps)[0]

    @torch.no_grad()
    def packed_pass(
        self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The last hidden states of whole sequences, packed end to end, and the backward."""
        attention = training_attention(lengths, self._angles(lengths))
        tapes: list[LayerTape] = []
        x_TD = F.embedding(tokens_T, self.weights.embed_VD)
        for layer in self._layers:
            x_TD, tape = layer.forward(x_TD, attention, lora)
            tapes.append(tape)
        hidden_TD, inverse_T1 = rms_norm(x_TD, self.weights.norm_D, self.config.norm_eps)

        @torch.no_grad()
        def backward(dhidden_TD: Tensor) -> None:
            unit_TD = rms_unit(x_TD, inverse_T1)
            dx_TD = rms_norm_backward(dhidden_TD, unit_TD, inverse_T1, self.weights.norm_D)
            for layer in reversed(self._layers):
                dx_TD = layer.backward(dx_TD, tapes.pop(), attention, lora)

        return hidden_TD, backward

    def _angles(self, lengths: list[int]) -> Angles:
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        positions_T = positions_T.to(self._cos_PC.device)
        return Angles(
            self._cos_PC[positions_T].unsqueeze(1), self._sin_PC[positions_T].unsqueeze(1)
        )


def _numel(value: Tensor | None) -> int:
    return 0 if value is None else value.numel()


def _lora_groups(config: ModelConfig) -> list[LoraGroup]:
    hidden, wide = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    groups = []
    for i in range(config.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        qkv = tuple(
            LoraTarget(f"{attn}.{name}_proj", hidden, size)
            for name, size in (("q", q), ("k", kv), ("v", kv))
        )
        gate_up = tuple(LoraTarget(f"{mlp}.{name}_proj", hidden, wide) for name in ("gate", "up"))
        groups += [
            LoraGroup(f"{i}.qkv", "attn", qkv),
            LoraGroup(f"{i}.out", "attn", (LoraTarget(f"{attn}.o_proj", q, hidden),)),
            LoraGroup(f"{i}.gate_up", "mlp", gate_up),
            LoraGroup(f"{i}.down", "mlp", (LoraTarget(f"{mlp}.down_proj", wide, hidden),)),
        ]
    head = LoraTarget("lm_head", hidden, config.vocab_size)
    return [*groups, LoraGroup(HEAD_SITE, "unembed", (head,))]


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of features, stretched as the model's config says."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _stretch_llama3(frequencies, rope)
    return frequencies


def _stretch_llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow turns are slowed by `factor`, fast ones kept, those between blended."""
    turns = rope.original_context * frequencies / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / rope.factor)


def _rope_tables(config: ModelConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    positions = torch.arange(config.context_length, dtype=torch.float32)
    angles_PC = torch.outer(positions, rope_frequencies(config.rope, config.head_dim)).repeat(1, 2)
    return angles_PC.cos().to(like), angles_PC.sin().to(like)
