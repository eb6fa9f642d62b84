"""The description of a decoder, read from a Hugging Face config.json.

Covers the families of the lean path (`families`). `parse_config` answers `NotLean` for everything
else, which then runs through transformers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkex.engine.errors import EngineUserError
from tinkex.engine.model.families import FAMILIES, Family
from tinkex.engine.model.rope_config import parse_ropes, why_not_ropes
from tinkex.engine.model.spec import Activation, DecoderSpec, ExpertsSpec, LayerSpec, NormSpec

__all__ = ["NotLean", "bad_model_file", "parse_config", "read_eos_token_ids", "read_json"]


@dataclass(frozen=True, slots=True)
class NotLean:
    """The reason why a model cannot run on the lean path, as a clause that follows "because"."""

    reason: str


_MOST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "num_experts": 1 << 12,
    "num_experts_per_tok": 1 << 12,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 22,
}
"""Largest accepted size: lists of this length are made before any weight is read."""

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def parse_config(raw: dict[str, Any], context_length: int | None = None) -> DecoderSpec | NotLean:
    """Returns the decoder's description, or `NotLean` with the reason why the lean path cannot run
    this model with contexts of up to `context_length` tokens (None: up to the model's own limit).

    Raises:
        ValueError: a size is none, or beyond that of any model.
    """
    arch = raw.get("model_type", "")
    family = FAMILIES.get(arch)
    if family is None:
        _refuse_huge(raw)
        names = ", ".join(sorted(FAMILIES))
        return NotLean(f"model_type={arch!r:.40} is not one of {names}")
    raw = {**family.defaults, **raw}
    not_lean = _not_lean(raw, family, context_length)
    if not_lean is not None:
        _refuse_huge(raw)
        return not_lean
    num_heads = _size(raw, "num_attention_heads")
    hidden_size = _size(raw, "hidden_size")
    head_dim = _size(raw, "head_dim", hidden_size // num_heads)
    return DecoderSpec(
        arch=raw["model_type"],
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(
            raw, "moe_intermediate_size" if family.has_experts else "intermediate_size"
        ),
        num_heads=num_heads,
        num_kv_heads=_size(raw, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        context_length=min(
            context_length or _MOST["max_position_embeddings"],
            _size(raw, "max_position_embeddings"),
        ),
        layers=_parse_layers(raw, family, _size(raw, "num_hidden_layers")),
        ropes=parse_ropes(raw, family),
        norm=NormSpec(raw.get("rms_norm_eps", 1e-6), family.norm_adds_one, family.norm_is_wide),
        query_scale=1.0 / math.sqrt(raw.get(family.query_scalar_key) or head_dim),
        has_tied_head=raw.get("tie_word_embeddings", False),
        norms=family.norms,
        qk_norm=family.qk_norm,
        activation=_ACTIVATIONS[raw.get(family.activation_key, "silu")],
        embed_scale=math.sqrt(hidden_size) if family.scales_embedding else 1.0,
        has_fused_projections=family.has_fused_projections,
        experts=_parse_experts(raw) if family.has_experts else None,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Returns the file's JSON object; an empty one if the file does not exist.

    Raises:
        EngineUserError: the file holds no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_model_file(path, str(error)) from error
    if not isinstance(content, dict):
        raise bad_model_file(path, "it must hold an object")
    return content


def bad_model_file(path: Path, reason: str) -> EngineUserError:
    """Returns the error for a malformed file of a model folder."""
    return EngineUserError(
        f"{path.name} in {path.parent.name!r} cannot be read: {reason[:200]}. "
        "Is the download complete?",
        code="bad-model-file",
        field="model",
        value=path.name,
    )


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Returns the ids that end a generation: from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        eos = read_json(folder / name).get("eos_token_id")
        if eos is not None:
            ids = eos if isinstance(eos, list) else [eos]
            if not all(isinstance(each, int) and 0 <= each < 1 << 31 for each in ids):
                raise bad_model_file(folder / name, f"eos_token_id={eos!r:.40} is no token id")
            return tuple(ids)
    return ()


def _size(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw[name] if default is None else raw.get(name) or default
    most = _MOST[name]
    if type(value) is not int or not 1 <= value <= most:  # True would be an int too
        raise ValueError(f"{name}={value!r:.40} is outside 1..{most}")
    return value


def _refuse_huge(raw: dict[str, Any]) -> None:
    """Refuses sizes beyond those of any model: transformers allocates the whole model from the
    config before it compares the config with the weights.

    Only a number that is too large is certainly wrong. Other families leave sizes out or hold lists
    of them, and long contexts may cost them nothing.

    Raises:
        ValueError: a size is beyond that of any model.
    """
    for name, most in _MOST.items():
        value = raw.get(name)
        is_huge = isinstance(value, int | float) and value > most
        if is_huge and name != "max_position_embeddings":
            raise ValueError(f"{name}={value!r:.40} is above {most}")


def _not_lean(raw: dict[str, Any], family: Family, context_length: int | None) -> NotLean | None:
    """Returns the first feature of the config that the lean path does not support; None if
    there is none."""
    for key in family.unsupported:
        if raw.get(key):
            return NotLean(f"it has {key}={raw[key]!r:.40}")
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        return NotLean("only some of its layers have experts")
    activation = raw.get(family.activation_key, "silu")
    if activation not in _ACTIVATIONS:
        return NotLean(f"its activation is {activation!r:.40}")
    longest = context_length or raw.get("max_position_embeddings", 0)
    reason = why_not_ropes(raw, family, longest)
    return None if reason is None else NotLean(reason)


def _parse_experts(raw: dict[str, Any]) -> ExpertsSpec:
    # transformers 5 writes the number of experts under another name than the published files have.
    raw = {"num_experts": raw.get("num_local_experts"), **raw}
    return ExpertsSpec(
        count=_size(raw, "num_experts"),
        per_token=_size(raw, "num_experts_per_tok"),
        normalizes=raw.get("norm_topk_prob", False),
    )


def _parse_layers(raw: dict[str, Any], family: Family, num_layers: int) -> tuple[LayerSpec, ...]:
    window = int(raw.get("sliding_window") or 0)
    is_sliding = _sliding_layers(raw, family, num_layers)
    if len(is_sliding) != num_layers:
        raise ValueError(f"layer_types must name the type of each of the {num_layers} layers")
    sliding = LayerSpec(window, rope=1 if family.has_local_rope else 0)
    return tuple(sliding if each else LayerSpec() for each in is_sliding)


def _sliding_layers(raw: dict[str, Any], family: Family, num_layers: int) -> list[bool]:
    rule, kinds = family.window_rule, raw.get("layer_types")
    if rule.endswith("if used") and not raw.get("use_sliding_window", False):
        return [False] * (len(kinds) if kinds else num_layers)
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    if rule.startswith("every"):
        return [True] * num_layers
    if rule == "pattern":
        return [(i + 1) % raw["sliding_window_pattern"] != 0 for i in range(num_layers)]
    return [i >= raw.get("max_window_layers", num_layers) for i in range(num_layers)]
