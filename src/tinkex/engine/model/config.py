"""What the lean decoder needs to know of a model, read from a Hugging Face config.json.

Covers the families that share the Llama shape. `parse_config` answers None for everything else,
which then goes through transformers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkex.engine.errors import EngineUserError

__all__ = [
    "ModelConfig",
    "RopeConfig",
    "bad_model_file",
    "parse_config",
    "read_eos_token_ids",
    "read_json",
]

_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "mistral"})
_ROPE_KINDS = frozenset({"default", "linear", "llama3"})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: the base, and how its frequencies are stretched for long contexts."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes and switches of one decoder. `windows[i]` is layer i's window, 0 = no limit."""

    arch: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    rope: RopeConfig
    has_tied_head: bool
    has_qk_norm: bool
    windows: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.norm_eps, self.rope.theta, self.rope.factor)
        if not all(isinstance(each, int | float) and 0 < each < math.inf for each in numbers):
            raise ValueError("norm_eps and the numbers of rope must be above 0")
        if self.context_length * self.head_dim > _MOST_ANGLES:
            raise ValueError(
                f"max_position_embeddings={self.context_length} is too long a context for "
                f"head_dim={self.head_dim}: together at most {_MOST_ANGLES}"
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: rope turns pairs of features")
        if len(self.windows) != self.num_layers or min(self.windows) < 0:
            raise ValueError("there must be a window of 0 or more for every layer")


_MOST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 22,
}
"""Sizes are believed up to here: lists are made from them before any weight is looked at."""

_MOST_ANGLES = 1 << 29
"""In a table of positions, which no weight bounds: the longest context at 128 features a head."""


def parse_config(raw: dict[str, Any]) -> ModelConfig | None:
    """The decoder's config, or None if this model is not of the Llama shape.

    Raises:
        ValueError: a size is none, or beyond that of any model.
    """
    rope = _parse_rope(raw)
    arch = raw.get("model_type", "")
    if arch not in _FAMILIES or rope is None or raw.get("hidden_act", "silu") != "silu":
        _refuse_huge(raw)
        return None
    num_heads = _size(raw, "num_attention_heads")
    hidden_size = _size(raw, "hidden_size")
    num_layers = _size(raw, "num_hidden_layers")
    return ModelConfig(
        arch=arch,
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(raw, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_size(raw, "num_key_value_heads", num_heads),
        head_dim=_size(raw, "head_dim", hidden_size // num_heads),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        context_length=_size(raw, "max_position_embeddings"),
        rope=rope,
        has_tied_head=raw.get("tie_word_embeddings", False),
        has_qk_norm=arch == "qwen3",
        windows=_parse_windows(raw, arch, num_layers),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The file's object, or an empty one where there is no file.

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
    """What is raised for a file of a model folder that is not what it should be."""
    return EngineUserError(
        f"{path.name} in {path.parent.name!r} cannot be read: {reason[:200]}. "
        "Is the download complete?",
        code="bad-model-file",
        field="model",
        value=path.name,
    )


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end a generation: generation_config.json's, or else config.json's."""
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
    """Returns if transformers can be given the config: it makes all of a model, then compares.

    Only a number too large is wrong for certain. Other families leave sizes out or hold lists of
    them, and long contexts may cost them nothing.

    Raises:
        ValueError: a size is beyond that of any model.
    """
    for name, most in _MOST.items():
        value = raw.get(name)
        is_huge = isinstance(value, int | float) and value > most
        if is_huge and name != "max_position_embeddings":
            raise ValueError(f"{name}={value!r:.40} is above {most}")


def _parse_rope(raw: dict[str, Any]) -> RopeConfig | None:
    # Older files hold rope_theta and rope_scaling side by side, newer ones one rope_parameters.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_KINDS or raw.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    return RopeConfig(
        theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_context=int(scaling.get("original_max_position_embeddings", 8192)),
    )


def _parse_windows(raw: dict[str, Any], arch: str, num_layers: int) -> tuple[int, ...]:
    window = int(raw.get("sliding_window") or 0)
    kinds = raw.get("layer_types")
    if arch.startswith("qwen") and not raw.get("use_sliding_window", False):
        window = 0
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if arch == "mistral":
        return (window,) * num_layers
    first_windowed = raw.get("max_window_layers", num_layers) if window else num_layers
    return tuple(window if i >= first_windowed else 0 for i in range(num_layers))
