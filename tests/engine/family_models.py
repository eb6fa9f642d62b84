"""Tiny random models of the families that tiny models do not cover, as transformers saves them.

Everything comes from transformers' own config classes and `save_pretrained`. Windows are shorter
than the sequences of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 259,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}

FAMILY_CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 3},
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=10,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES, rope_parameters=ROPE, sliding_window=10),
    "phi4-mini": lambda: transformers.Phi3Config(
        **SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1},
        tie_word_embeddings=True,
        original_max_position_embeddings=512,
        rope_parameters={
            **ROPE,
            "rope_type": "longrope",
            "partial_rotary_factor": 0.75,
            "factor": 3.0,
            "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        },
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES,
        rope_parameters=ROPE,
        head_dim=16,
        moe_intermediate_size=24,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=True,
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES, rope_parameters=ROPE),
}


def make_family_model(folder: Path, family: str, **overrides: Any) -> Path:
    """The folder, now holding a random model of this family; `overrides` change its config."""
    config = FAMILY_CONFIGS[family]()
    for name, value in overrides.items():
        setattr(config, name, value)
    with torch.random.fork_rng(), torch.no_grad():  # no test draws other numbers because of it
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            _randomize(name, parameter)
    model.save_pretrained(folder)
    return folder


def _randomize(name: str, parameter: torch.Tensor) -> None:
    # Norm weights far from where they start and fan-in scaling: a norm that is forgotten, or that
    # lacks its one, then shows in every logprob.
    if "norm" in name:
        parameter += torch.empty_like(parameter).uniform_(-0.5, 0.5)
    else:
        torch.nn.init.normal_(parameter, std=1.2 / parameter.shape[-1] ** 0.5)
