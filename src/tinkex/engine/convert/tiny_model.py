"""Tiny random models made on the spot, for tests and demos that must not download anything.

Each is a complete Hugging Face folder: config, safetensors weights, a byte-level tokenizer with
a chat template. Its words mean nothing, but everything about it works.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tinkex.engine.convert.tokenizer_json import added_token, byte_level, byte_level_bpe
from tinkex.engine.model.config import parse_config
from tinkex.engine.model.spec import DecoderSpec
from tinkex.files.atomic_folder import write_folder
from tinkex.files.safetensors_writer import tensor_chunks

__all__ = ["TinyShape", "make_tiny_model"]

TinyShape = Literal["llama", "smollm", "qwen2", "qwen3", "mistral"]

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
_VOCAB_SIZE = 256 + len(_SPECIAL) + 12  # the rest is unused, as in real models
_EOS_ID = 258

_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": _EOS_ID,
    "bos_token_id": 257,
    "torch_dtype": "float32",
}

_SHAPES: dict[TinyShape, dict[str, Any]] = {
    "llama": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "smollm": {"tie_word_embeddings": True},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 12,
        "head_dim": 8,
    },
}

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(
    folder: Path, shape: TinyShape = "smollm", *, seed: int = 0, **overrides: Any
) -> Path:
    """Writes a random model of this shape into the folder; returns the folder.

    `overrides` change its config.json; None removes a key.

    make_tiny_model(Path("tiny"), "qwen3", num_hidden_layers=4)
    """
    merged = {**_BASE, **_SHAPES[shape], **overrides}
    raw = {key: value for key, value in merged.items() if value is not None}
    spec = parse_config(raw)
    assert isinstance(spec, DecoderSpec), "a tiny model always runs on the lean path"
    tensors = _random_tensors(spec, raw["model_type"], np.random.default_rng(seed))
    files = {
        "config.json": _json(raw),
        "generation_config.json": _json({"eos_token_id": _EOS_ID}),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
    }
    write_folder(
        folder,
        {**files, "model.safetensors": lambda: tensor_chunks(tensors)},
    )
    return folder


def _random_tensors(
    spec: DecoderSpec, model_type: str, rng: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    hidden, wide, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q, kv = spec.num_heads * head, spec.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for i in range(spec.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{attn}.{name}_proj.weight"] = (size, hidden)
            if model_type == "qwen2":
                shapes[f"{attn}.{name}_proj.bias"] = (size,)
        if spec.qk_norm != "none":
            shapes |= {f"{attn}.{name}_norm.weight": (head,) for name in "qk"}
        shapes[f"{attn}.o_proj.weight"] = (hidden, q)
        shapes |= {f"{mlp}.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        shapes[f"{mlp}.down_proj.weight"] = (hidden, wide)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{i}.{name}.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not spec.has_tied_head:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return {name: _random(name, shape, rng) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    # Norm weights off 1 and fan-in scaling: a forgotten norm or bias then shows in every logprob.
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    numbers: npt.NDArray[np.float64] = rng.standard_normal(shape) * 1.2 / np.sqrt(shape[-1])
    return numbers.astype(np.float32)


def _tokenizer() -> dict[str, Any]:
    """Returns a tokenizer without merges: id = the byte, then the special tokens."""
    vocab = {char: byte for byte, char in _byte_chars().items()}
    added = [added_token(256 + i, content) for i, content in enumerate(_SPECIAL)]
    return byte_level_bpe(vocab, [], added, byte_level(use_regex=False))


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }


def _byte_chars() -> dict[int, str]:
    """Returns GPT-2's mapping of each byte to a printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in chars]
    return chars | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
