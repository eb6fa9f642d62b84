"""New tokens of streamed requests that were not handed out yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tinkex.engine.interface import SequenceDelta, TopK
from tinkex.engine.sampling.state import RunningSequence

__all__ = ["StreamedTokens"]


class StreamedTokens:
    """The sequences of streamed requests that have new tokens.

    A step without streamed requests costs one look at `is_active`. Used by the computing thread
    only.
    """

    def __init__(self) -> None:
        self._requests: set[str] = set()  # not finished
        self._sequences: dict[RunningSequence, None] = {}  # with tokens to hand out, in order
        self.has_first_token = False  # of a request whose tokens were not taken yet

    @property
    def is_active(self) -> bool:
        """Whether any request is streamed."""
        return bool(self._requests)

    def add_request(self, request_id: str) -> None:
        """Registers a streamed request."""
        self._requests.add(request_id)

    def note(self, extended: Iterable[RunningSequence]) -> None:
        """Records that these sequences got a token."""
        for sequence in extended:
            if sequence.job.request.stream:
                self._sequences[sequence] = None
                self.has_first_token |= len(sequence.tokens) == 1

    def forget_finished(self, request_ids: Iterable[str]) -> None:
        """Unregisters these requests; tokens they have are still handed out."""
        self._requests.difference_update(request_ids)

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """Drops requests that end without a result, and their tokens."""
        self._requests = {each for each in self._requests if not is_dropped(each)}
        self._sequences = {
            each: None for each in self._sequences if not is_dropped(each.job.request.request_id)
        }

    def take(self) -> list[SequenceDelta]:
        """Returns the new tokens of every sequence and counts them as handed out."""
        sequences, self._sequences = self._sequences, {}
        self.has_first_token = False
        return [_take(each) for each in sequences if each.job.result.error is None]


def _take(sequence: RunningSequence) -> SequenceDelta:
    start = sequence.num_streamed
    sequence.num_streamed = len(sequence.tokens)
    topk = None
    if sequence.topk:
        topk = TopK(
            token_ids=np.stack([ids for ids, _ in sequence.topk[start:]]).astype(np.int32),
            logprobs=np.stack([logprobs for _, logprobs in sequence.topk[start:]]),
        )
    return SequenceDelta(
        request_id=sequence.job.request.request_id,
        index=sequence.index,
        offset=start,
        tokens=np.array(sequence.tokens[start:], np.int32),
        logprobs=np.array(sequence.logprobs[start:], np.float32),
        topk=topk,
        stop_reason=sequence.ended,
    )
