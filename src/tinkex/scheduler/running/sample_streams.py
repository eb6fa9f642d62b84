"""Tokens of running streamed requests, written by the engines' threads and read by followers.

A stream is open while an engine has its request, and after the loss of an engine until the request
has run again. The repeated tokens are compared with the stored ones, and only the tokens after them
are new. The same seed gives the same tokens, unless a rounding difference changes the choice
between two tokens; then the stream ends early, and its followers get another result at the end.

Memory is bounded: above `max_bytes` the longest streams store no more tokens, and followers get the
others with the result. Thread-safe.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tinkex.engine.interface import SequenceDelta, TopK
from tinkex.types.sample_stream import SampleDelta
from tinkex.types.sampling import StopReason, TopkLogprobs

__all__ = ["SampleStreams", "tokens_key"]


def tokens_key(request_id: str) -> str:
    """The key under which new tokens of a request are announced."""
    return f"tokens of {request_id}"


class SampleStreams:
    """The streamed requests that engines work on. `announce` gets the keys of what has grown."""

    def __init__(
        self, announce: Callable[[set[str]], None], *, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._announce = announce
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()

    def open(self, request_id: str, num_samples: int) -> None:
        """Opens the stream of a request that an engine gets; tokens stored before are kept."""
        with self._lock:
            if request_id not in self._streams:
                self._streams[request_id] = _Stream(num_samples)

    def add(self, deltas: Iterable[SequenceDelta]) -> None:
        """Keeps tokens that an engine has made, and announces them."""
        grown: set[str] = set()
        with self._lock:
            for delta in deltas:
                stream = self._streams.get(delta.request_id)
                if stream is None or stream.is_cut:
                    continue
                before = stream.num_bytes
                stream.add(delta)
                self._num_bytes += stream.num_bytes - before
                grown.add(tokens_key(delta.request_id))
            while self._num_bytes > self._max_bytes:
                self._cut_longest()
        if grown:
            self._announce(grown)

    def read(self, request_id: str, offsets: Sequence[int]) -> list[SampleDelta]:
        """What is kept of each sequence beyond so many tokens of it."""
        with self._lock:
            stream = self._streams.get(request_id)
            return [] if stream is None else stream.read(offsets)

    def end(self, request_ids: Iterable[str]) -> None:
        """Closes the streams of finished requests: all their tokens are in their results."""
        if not self._streams:
            return
        with self._lock:
            for request_id in request_ids:
                stream = self._streams.pop(request_id, None)
                if stream is not None:
                    self._num_bytes -= stream.num_bytes

    @property
    def num_open(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    def _cut_longest(self) -> None:
        stream = max(self._streams.values(), key=lambda each: each.num_bytes)
        self._num_bytes -= stream.num_bytes
        stream.cut()


class _Stream:
    """The tokens so far of one request's sequences."""

    def __init__(self, num_samples: int) -> None:
        self._sequences = [_Sequence() for _ in range(num_samples)]
        self.is_cut = False  # keeps nothing more
        self.num_bytes = 0

    def add(self, delta: SequenceDelta) -> None:
        added = self._sequences[delta.index].add(delta)
        if added is None:
            self.is_cut = True
        else:
            self.num_bytes += added

    def read(self, offsets: Sequence[int]) -> list[SampleDelta]:
        found = (
            each.read(index, offset)
            for index, (each, offset) in enumerate(zip(self._sequences, offsets, strict=True))
        )
        return [each for each in found if each is not None]

    def cut(self) -> None:
        self._sequences = [_Sequence() for _ in self._sequences]
        self.is_cut, self.num_bytes = True, 0


class _Sequence:
    """One sequence's tokens so far, eight bytes each, and eight more for each of its top k."""

    __slots__ = ("k", "logprobs", "stop_reason", "tokens", "topk_ids", "topk_logprobs")

    def __init__(self) -> None:
        self.tokens, self.topk_ids = array("i"), array("i")
        self.logprobs, self.topk_logprobs = array("f"), array("f")
        self.k = 0
        self.stop_reason: StopReason | None = None

    def add(self, delta: SequenceDelta) -> int | None:
        """How many bytes more are kept; None if the delta does not continue what is kept."""
        known = len(self.tokens) - delta.offset
        tokens = array("i", np.ascontiguousarray(delta.tokens, "<i4").tobytes())
        if not self._is_continued(known, tokens, delta.stop_reason):
            return None
        num_new = max(0, len(tokens) - known)
        if num_new:
            self.tokens += tokens[known:]
            self.logprobs.frombytes(np.ascontiguousarray(delta.logprobs[known:], "<f4").tobytes())
            if delta.topk is not None:
                self._add_topk(delta.topk, known)
            self.stop_reason = delta.stop_reason
        return 8 * (1 + self.k) * num_new

    def _is_continued(self, known: int, tokens: array[int], stop_reason: str | None) -> bool:
        """Whether tokens, of which so many should be known, are those that are kept."""
        if known < 0:
            return False
        overlap = min(known, len(tokens))
        start = len(self.tokens) - known
        ends_early = stop_reason is not None and len(tokens) < known
        goes_on = self.stop_reason is not None and len(tokens) > known
        is_same = tokens[:overlap] == self.tokens[start : start + overlap]
        return is_same and not (ends_early or goes_on)

    def _add_topk(self, topk: TopK, known: int) -> None:
        self.k = int(topk.token_ids.shape[1])
        self.topk_ids.frombytes(np.ascontiguousarray(topk.token_ids[known:], "<i4").tobytes())
        self.topk_logprobs.frombytes(np.ascontiguousarray(topk.logprobs[known:], "<f4").tobytes())

    def read(self, index: int, offset: int) -> SampleDelta | None:
        """The tokens from this one on; None if there are none."""
        if offset >= len(self.tokens):
            return None
        topk = None
        if self.k:
            topk = TopkLogprobs(
                token_ids_raw=self.topk_ids[offset * self.k :].tobytes(),
                logprobs_raw=self.topk_logprobs[offset * self.k :].tobytes(),
                k=self.k,
                length=len(self.tokens) - offset,
            )
        return SampleDelta(
            index=index,
            offset=offset,
            tokens=self.tokens[offset:].tolist(),
            logprobs=self.logprobs[offset:].tolist(),
            topk_logprobs=None if topk is None else topk.tolist(),
            stop_reason=self.stop_reason,
        )
