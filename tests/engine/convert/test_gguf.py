"""GGUF files: known blocks expand to known numbers, and a converted model is the model."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.engine.oracle import Oracle
from tests.engine.work import tokens
from tinkex.engine.convert.gguf import GgufFile
from tinkex.engine.convert.gguf_to_hf import convert_gguf
from tinkex.engine.errors import EngineUserError

F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    assert isinstance(value, list)
    inner = [_value(item) for item in value]
    head = struct.pack("<I", 9) + inner[0][:4] + struct.pack("<Q", len(inner))
    return head + b"".join(item[4:] for item in inner)


def write_gguf(
    path: Path, meta: dict[str, object], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]
) -> Path:
    """A GGUF file of (type, shape, raw bytes) tensors."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, value in meta.items():
        out += _string(key) + _value(value)
    offset, body = 0, b""
    for name, (kind, shape, raw) in tensors.items():
        out += _string(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", size) for size in reversed(shape))
        out += struct.pack("<IQ", kind, offset)
        body += raw + b"\0" * (-len(raw) % 32)
        offset = len(body)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + body)
    return path


def _half(number: float) -> bytes:
    return np.float16(number).tobytes()


def test_blocks_expand_to_their_numbers(tmp_path) -> None:
    quants = np.arange(16, dtype=np.uint8)
    packed = (quants | ((15 - quants) << 4)).tobytes()
    small = np.arange(-16, 16, dtype=np.int8)
    path = write_gguf(
        tmp_path / "x.gguf",
        {"general.name": "x", "flag": True, "list": ["a", "b"], "eps": 0.5},
        {
            "q4_0": (Q4_0, (2, 16), _half(0.5) + packed),
            "q4_1": (Q4_1, (32,), _half(0.5) + _half(-3.0) + packed),
            "q8_0": (Q8_0, (32,), _half(0.25) + small.tobytes()),
            "f16": (F16, (3,), np.array([1, 2.5, -4], np.float16).tobytes()),
            "f32": (F32, (2, 2), np.arange(4, dtype=np.float32).tobytes()),
        },
    )
    file = GgufFile(path)
    ramp = np.concatenate([np.arange(16), 15 - np.arange(16)])
    np.testing.assert_array_equal(file.tensor("q4_0"), ((ramp - 8) * 0.5).reshape(2, 16))
    np.testing.assert_array_equal(file.tensor("q4_1"), ramp * 0.5 - 3)
    np.testing.assert_array_equal(file.tensor("q8_0"), np.arange(-16, 16) * 0.25)
    np.testing.assert_array_equal(file.tensor("f16"), [1, 2.5, -4])
    np.testing.assert_array_equal(file.tensor("f32"), [[0, 1], [2, 3]])
    assert file.metadata == {"general.name": "x", "flag": True, "list": ["a", "b"], "eps": 0.5}


def test_converted_model_is_the_model(tiny, tmp_path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    vocab += [token["content"] for token in tokenizer["added_tokens"]]
    vocab += [f"<unused{i}>" for i in range(config["vocab_size"] - len(vocab))]
    meta: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 4 + [1] * 12,
        "tokenizer.ggml.merges": ["a b", "1 2"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.padding_token_id": 258,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    # "ab" and "12" must be in the vocabulary to be merged to.
    vocab[260:262] = ["ab", "12"]
    tensors = {
        _gguf_name(name): (F32, tensor.shape, _permuted(name, tensor, config).tobytes())
        for name, tensor in load_file(tiny / "model.safetensors").items()
    }
    folder = convert_gguf(write_gguf(tmp_path / "m.gguf", meta, tensors), tmp_path / "hf")
    prompt = tokens(40)
    with torch.no_grad():
        expected = Oracle(tiny).all_logprobs(prompt)
        found = Oracle(folder).all_logprobs(prompt)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    _check_tokenizer(folder)


def _check_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Letters merge; digits are split apart before any merge can see them.
    assert tokenizer.encode("ab12<|im_end|>") == [260, ord("1"), ord("2"), 258]
    assert tokenizer.decode([260, 49, 258]) == "ab1<|im_end|>"
    assert tokenizer.eos_token_id == 258
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hi"


def test_other_files_are_refused(tmp_path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(EngineUserError, match="not a GGUF file"):
        GgufFile(tmp_path / "x.gguf")
    other = write_gguf(tmp_path / "y.gguf", {"general.architecture": "bert"}, {})
    with pytest.raises(EngineUserError, match=r"general\.architecture='bert'"):
        convert_gguf(other, tmp_path / "out")
    odd = write_gguf(tmp_path / "z.gguf", {}, {"t": (14, (32,), b"\0" * 64)})
    with pytest.raises(EngineUserError, match="GGUF type 14"):
        GgufFile(odd).tensor("t")
    assert not (tmp_path / "out").exists()


def _gguf_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, *path, kind = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(path)]}.{kind}"


def _permuted(name: str, tensor: np.ndarray, config: dict[str, int]) -> np.ndarray:
    """The row order llama.cpp stores q and k in."""
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
