"""The model families of the lean path: what config.json leaves unsaid about a whole family.

A family that differs from these in norms, activation, windows or rotary positions is one more
entry here. What no entry can say is a feature of `DecoderSpec` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkex.engine.model.spec import PRE_NORMS, LayerNorms, QkNorm

__all__ = ["FAMILIES", "Family", "WindowRule"]

WindowRule = Literal["every", "upper", "upper if used"]
"""Which layers have the sliding window where config.json names no layer types: every one, those
from `max_window_layers` on, or the latter if `use_sliding_window` is set."""


_ROPE_KINDS = {"default": "default", "linear": "linear", "llama3": "llama3"}


@dataclass(frozen=True, slots=True)
class Family:
    """What all models of a family have in common.

    `rope_kinds` are the kinds of rotary positions, by their names in config.json. `defaults` are
    the values of keys that the family's config.json files may leave out.
    """

    norms: LayerNorms = PRE_NORMS
    norm_is_wide: bool = False
    qk_norm: QkNorm = "none"
    window_rule: WindowRule = "upper"
    rope_kinds: Mapping[str, str] = field(default_factory=lambda: _ROPE_KINDS)
    has_partial_rotary: bool = False
    has_fused_projections: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(window_rule="upper if used"),
    "qwen3": Family(qk_norm="head", window_rule="upper if used"),
    "mistral": Family(window_rule="every"),
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
