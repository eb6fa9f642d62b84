"""The description of a decoder: the sizes and operations of one model, as one frozen value.

Read once from config.json (`config`). The training pass, the torch sampling pass and the compiled
kernels take from it what they need, and each says what it cannot run. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "MOST_ANGLES",
    "PRE_NORMS",
    "Activation",
    "DecoderSpec",
    "ExpertsSpec",
    "LayerNorms",
    "LayerSpec",
    "NormSpec",
    "QkNorm",
    "RopeSpec",
]

Activation = Literal["silu", "gelu_tanh"]
QkNorm = Literal["none", "head", "projection"]

MOST_ANGLES = 1 << 29
"""Maximum numbers in a table of positions, whose size no weight bounds: the longest context at 128
features per head."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: the base, and how its frequencies are scaled for long contexts.

    `fraction` of a head's features, the first ones, are rotated. `pair_factors` divide the
    frequency of each pair, `amplitude` multiplies cosine and sine; longrope sets both.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    fraction: float = 1.0
    pair_factors: tuple[float, ...] = ()
    amplitude: float = 1.0

    def rotated(self, head_dim: int) -> int:
        """Returns how many features of a head are rotated."""
        return int(head_dim * self.fraction)


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The variant of RMSNorm. With `adds_one` a stored weight w means 1 + w; with `is_wide` the
    weight is applied in float32, before the result is rounded to the model's type."""

    eps: float
    adds_one: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The tensor names of a layer's norms; None where the layer has no norm.

    Those before attention and MLP are on their inputs; those after are on their outputs, before the
    residual is added.
    """

    before_attn: str | None
    before_mlp: str | None
    after_attn: str | None = None
    after_mlp: str | None = None

    def names(self) -> tuple[str, ...]:
        """The names of all norms of a layer."""
        found = (self.before_attn, self.before_mlp, self.after_attn, self.after_mlp)
        return tuple(name for name in found if name is not None)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The properties that may differ between layers: the sliding window (0: no limit), and which of
    the model's `ropes` rotates queries and keys."""

    window: int = 0
    rope: int = 0


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """MLPs that are mixtures of experts: how many there are, and how many of them each token takes.
    With `normalizes` the weights of those taken are made to sum to one."""

    count: int
    per_token: int
    normalizes: bool

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(
                f"num_experts_per_tok={self.per_token} must be from 1 to num_experts={self.count}"
            )


PRE_NORMS = LayerNorms("input_layernorm", "post_attention_layernorm")
"""Llama's, which most families have. The second name is historical: it is the MLP's input norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """The sizes and operations of one decoder.

    Queries are multiplied by `query_scale` before they meet keys, embeddings by `embed_scale`. With
    fused projections the files hold q, k, v as one matrix `qkv_proj` and gate, up as one matrix
    `gate_up_proj`, and a LoRA is on each of these. With `experts`, `intermediate_size` is that of
    one expert.
    """

    arch: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    norm: NormSpec
    query_scale: float
    has_tied_head: bool
    norms: LayerNorms = PRE_NORMS
    qk_norm: QkNorm = "none"
    activation: Activation = "silu"
    embed_scale: float = 1.0
    has_fused_projections: bool = False
    experts: ExpertsSpec | None = None

    def __post_init__(self) -> None:
        numbers = [self.norm.eps, self.query_scale, self.embed_scale]
        numbers += [x for rope in self.ropes for x in _rope_numbers(rope)]
        if not all(isinstance(each, int | float) and 0 < each < math.inf for each in numbers):
            raise ValueError("norm_eps, the scales and the numbers of rope must be above 0")
        if self.context_length * self.head_dim > MOST_ANGLES:
            raise ValueError(
                f"max_position_embeddings={self.context_length} is too long a context for "
                f"head_dim={self.head_dim}: together at most {MOST_ANGLES}"
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        for rope in self.ropes:
            _check_rotated(rope, self.head_dim)
        if not self.layers or min(layer.window for layer in self.layers) < 0:
            raise ValueError("there must be a window of 0 or more for every layer")

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def query_factor(self) -> float:
        """`query_scale` over the usual `1 / sqrt(head_dim)`, which attention itself applies."""
        usual = 1.0 / math.sqrt(self.head_dim)
        return 1.0 if self.query_scale == usual else self.query_scale / usual

    @property
    def query_width(self) -> int:
        """The features of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """The features of all key heads together; those of the value heads are as many."""
        return self.num_kv_heads * self.head_dim


def _rope_numbers(rope: RopeSpec) -> tuple[float, ...]:
    return rope.theta, rope.factor, rope.amplitude, *rope.pair_factors


def _check_rotated(rope: RopeSpec, head_dim: int) -> None:
    rotated = rope.rotated(head_dim)
    if not 2 <= rotated <= head_dim or rotated % 2:
        of = "" if rope.fraction == 1 else f"times partial_rotary_factor={rope.fraction:g} "
        raise ValueError(f"head_dim={head_dim} {of}must be even: rope rotates pairs of features")
    if rope.pair_factors and len(rope.pair_factors) != rotated // 2:
        raise ValueError(
            f"short_factor must have {rotated // 2} numbers, not {len(rope.pair_factors)}"
        )
