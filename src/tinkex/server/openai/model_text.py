"""Tokenizers of served models: prompts to token ids, answers to text, at once or incrementally."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinkex.engine.interface import ModelInfo
from tinkex.errors import ClientError, TokenizerError
from tinkex.server.openai.tool_formats import ToolFormat, tool_format_of
from tinkex.tokenizers.incremental_text import IncrementalText
from tinkex.tokenizers.token_bytes import shown_token, token_bytes_of
from tinkex.tokenizers.tokenizer import Tokenizer, TokenizerCache, load_tokenizer

__all__ = ["ModelText", "ModelTexts"]

_INLINE_CHARS = 20_000  # a longer text is tokenized in a thread


class NoTokenizer(ClientError):
    """400: the server cannot load the model's tokenizer, which text in and out needs."""

    code = "no-tokenizer"
    status = 400
    param = "model"
    default_hint = (
        "The model's folder, with its tokenizer.json, must be on the server's own disk. If only "
        "workers on other machines have it, use the Tinker API, whose clients tokenize."
    )


class ModelText:
    """The tokenizer of one base model, and its chat template."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._bytes = token_bytes_of(tokenizer.backend)
        self._shown: dict[int, tuple[str, list[int]]] = {}

    async def encode(self, text: str) -> list[int]:
        """The ids of a text, with the tokens that the tokenizer puts around it."""
        if len(text) <= _INLINE_CHARS:
            return self._tokenizer.encode(text)
        return await asyncio.to_thread(self._tokenizer.encode, text)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """The ids of a conversation, up to the start of the assistant's answer.

        Raises:
            ValidationError: the model has no chat template, or the template raises an error.
        """

        def run() -> list[int]:
            ids: list[int] = self._tokenizer.apply_chat_template(
                messages, tools, add_generation_prompt=True, **variables
            )
            return ids

        size = sum(len(str(each.get("content"))) for each in messages)
        return run() if size <= _INLINE_CHARS and not tools else await asyncio.to_thread(run)

    def tool_format(self) -> ToolFormat | None:
        """How the model writes tool calls; None if its template has none, or none of a known
        format."""
        return tool_format_of(self._tokenizer.get_chat_template(None, [{}]))

    def decode(self, token_ids: Sequence[int], *, with_special: bool = False) -> str:
        """The text of ids."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=not with_special)

    def without_end(self, token_ids: list[int], stop_reason: str) -> list[int]:
        """The tokens of an answer without the stop token that ended it."""
        is_ended = stop_reason == "stop" and token_ids and token_ids[-1] in self._eos
        return token_ids[:-1] if is_ended else token_ids

    def incremental(self, *, with_special: bool = False) -> IncrementalText:
        """The text of ids that come one after the other."""
        special = set() if with_special else self._tokenizer.special_ids

        def token_of(token_id: int) -> str | None:
            return None if token_id in special else self._tokenizer.backend.id_to_token(token_id)

        return IncrementalText(lambda ids: self.decode(ids, with_special=with_special), token_of)

    def shown(self, token_id: int) -> tuple[str, list[int]]:
        """One token as text and as bytes."""
        known = self._shown.get(token_id)
        if known is None:
            raw = self._bytes(token_id)
            known = self._shown[token_id] = (shown_token(raw), list(raw))
        return known


class ModelTexts:
    """The `ModelText` of each served model, loaded when first needed."""

    def __init__(self) -> None:
        self._tokenizers = TokenizerCache()
        self._loaded: dict[str, ModelText] = {}

    async def get(self, info: ModelInfo) -> ModelText:
        """The `ModelText` of one model.

        Raises:
            NoTokenizer: the server cannot load its tokenizer.
        """
        known = self._loaded.get(info.name)
        if known is None:
            known = await asyncio.to_thread(self._load, info)
            self._loaded[info.name] = known
        return known

    def _load(self, info: ModelInfo) -> ModelText:
        if not info.path or not Path(info.path).is_dir():
            raise NoTokenizer(f"The files of {info.name} are not on the server's disk.")
        try:
            tokenizer = load_tokenizer(info.path, cache=self._tokenizers)
        except TokenizerError as error:
            raise NoTokenizer(f"The tokenizer of {info.name} cannot be loaded.") from error
        return ModelText(tokenizer, info.eos_token_ids)
