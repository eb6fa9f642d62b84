"""`usage`: tokens of prompts and answers, and prompt tokens taken from the cache."""

from __future__ import annotations

from typing import Any

import msgspec

from tinkex.types.sampling import SampleResponse

__all__ = ["TokenCounts"]


class TokenCounts(msgspec.Struct):
    """Tokens of all prompts and answers of one request. A prompt counts once for any `n`."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, prompt: int, answer: SampleResponse, *, is_shown: bool = True) -> None:
        """Counts one prompt, and its answers if they are part of the response."""
        self.prompt += prompt
        self.cached += answer.prompt_cache_hit_tokens
        if is_shown:
            self.completion += sum(len(each.tokens_raw) // 4 for each in answer.sequences)

    def shown(self) -> dict[str, Any]:
        """The `usage` field of the response."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
