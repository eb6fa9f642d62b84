"""The `tokenizer.json` of a byte-level BPE, as the tokenizers library reads it."""

from __future__ import annotations

from typing import Any

__all__ = ["added_token", "byte_level", "byte_level_bpe"]


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Returns the step that writes bytes as printable characters, optionally split into words."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def added_token(token_id: int, content: str) -> dict[str, Any]:
    """Returns a special token: matched whole, before any splitting."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": True, **flags}


def byte_level_bpe(
    vocab: dict[str, int],
    merges: list[list[str]],
    added: list[dict[str, Any]],
    pre_tokenizer: dict[str, Any],
) -> dict[str, Any]:
    """Returns the content of the whole file."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
