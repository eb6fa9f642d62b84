"""The tokens of a sequence so far and their counts, from which penalties are computed.

Counts grow with each sampled token and are never rebuilt. The prompt's distinct tokens are one
array for all samples of a request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["TokenHistory"]

_FIRST_CAPACITY = 16


class TokenHistory:
    """The distinct tokens of the prompt, and those of the answer so far with their counts."""

    def __init__(self, prompt_ids: npt.NDArray[np.int64]) -> None:
        self._prompt_ids = prompt_ids
        self._slot_of: dict[int, int] = {}  # index in the two arrays, by token
        self._ids = np.zeros(_FIRST_CAPACITY, np.int64)
        self._counts = np.zeros(_FIRST_CAPACITY, np.float32)

    def add(self, token: int) -> None:
        """Counts one more token of the answer."""
        slot = self._slot_of.setdefault(token, len(self._slot_of))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1

    @property
    def output_ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens of the answer so far."""
        return self._ids[: len(self._slot_of)]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """The counts of `output_ids` in the answer."""
        return self._counts[: len(self._slot_of)]

    @property
    def all_ids(self) -> npt.NDArray[np.int64]:
        """The tokens of prompt and answer; one that is in both is listed twice."""
        return np.concatenate([self._prompt_ids, self.output_ids])
