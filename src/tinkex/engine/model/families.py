"""The model families of the lean path: properties that config.json does not state.

A family that differs from these in norms, activation, windows or rotary positions is one more
entry here. A property that no field here can express needs a new
feature of `DecoderSpec` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkex.engine.model.spec import PRE_NORMS, LayerNorms, QkNorm

__all__ = ["FAMILIES", "Family", "WindowRule"]

WindowRule = Literal["every", "every if used", "upper", "upper if used", "pattern"]
"""Which layers have the sliding window where config.json names no layer types: every one, those
from `max_window_layers` on, or all but every n-th, n being `sliding_window_pattern`; "if used":
only with `use_sliding_window`."""


_ROPE_KINDS = {"default": "default", "linear": "linear", "llama3": "llama3"}


@dataclass(frozen=True, slots=True)
class Family:
    """The common properties of all models of one family.

    `rope_kinds` are the kinds of rotary positions, by their names in config.json; with
    `has_local_rope` layers with a window have positions of their own. Scores are divided by the
    root of `query_scalar_key`'s value; `scales_embedding`: embeddings are multiplied by that of the
    hidden size. `unsupported` are keys that the lean path does not follow: a model that
    sets one is not run. `defaults` are the values of keys that the files may leave out.
    """

    norms: LayerNorms = PRE_NORMS
    norm_is_wide: bool = False
    norm_adds_one: bool = False
    qk_norm: QkNorm = "none"
    activation_key: str = "hidden_act"
    window_rule: WindowRule = "upper"
    rope_kinds: Mapping[str, str] = field(default_factory=lambda: _ROPE_KINDS)
    has_partial_rotary: bool = False
    has_fused_projections: bool = False
    has_experts: bool = False
    has_local_rope: bool = False
    query_scalar_key: str = "head_dim"
    scales_embedding: bool = False
    unsupported: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(window_rule="upper if used"),
    "qwen3": Family(qk_norm="head", window_rule="upper if used"),
    "qwen3_moe": Family(qk_norm="head", window_rule="every if used", has_experts=True),
    "mistral": Family(window_rule="every"),
    "gemma3_text": Family(
        norms=LayerNorms(
            before_attn="input_layernorm",
            after_attn="post_attention_layernorm",
            before_mlp="pre_feedforward_layernorm",
            after_mlp="post_feedforward_layernorm",
        ),
        norm_is_wide=True,
        norm_adds_one=True,
        qk_norm="head",
        activation_key="hidden_activation",
        window_rule="pattern",
        has_local_rope=True,
        query_scalar_key="query_pre_attn_scalar",
        scales_embedding=True,
        unsupported=(
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "use_bidirectional_attention",
        ),
        defaults={
            "hidden_activation": "gelu_pytorch_tanh",
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": Family(
        norms=LayerNorms(
            before_attn=None,
            before_mlp=None,
            after_attn="post_attention_layernorm",
            after_mlp="post_feedforward_layernorm",
        ),
        norm_is_wide=True,
        qk_norm="projection",
        defaults={"rms_norm_eps": 1e-5},
    ),
    "phi3": Family(
        window_rule="every",
        # Its first files called longrope "su" or "yarn".
        rope_kinds={"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")},
        has_partial_rotary=True,
        has_fused_projections=True,
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
}
"""By config.json's model_type."""
