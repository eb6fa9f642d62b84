"""Streamed samples: the pieces that answers come in. Beyond the protocol."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tinkex.types._fields import sent
from tinkex.types._model import ProtocolModel, RecordModel
from tinkex.types.sampling import StopReason
from tinkex.types.training import RequestID

__all__ = ["SampleDelta", "SampleStreamEnd", "SampleStreamQueue", "StreamSampleRequest"]


class SampleDelta(RecordModel, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one sampled sequence: those from token `offset` of sequence `index` on.

    The deltas of a sequence follow each other without a gap, and no token comes twice. The last
    one has the `stop_reason`.
    """

    index: int
    offset: int
    tokens: list[int]
    logprobs: list[float]
    topk_logprobs: list[list[tuple[int, float]] | None] | None = None
    stop_reason: StopReason | None = None

    @property
    def end(self) -> int:
        """The number of tokens of the sequence including these."""
        return self.offset + len(self.tokens)


class SampleStreamQueue(RecordModel, frozen=True, kw_only=True):
    """Reports that no tokens came for a while, and whether the sample has to wait for others."""

    queue_state: str
    queue_state_reason: str | None = None


class SampleStreamEnd(RecordModel, frozen=True, kw_only=True):
    """Reports that a sample ended and its result can be fetched; `error` says why it failed."""

    request_id: str
    error: str | None = None


class StreamSampleRequest(ProtocolModel, frozen=True, kw_only=True, omit_defaults=True):
    """Requests the tokens of a sampling request as they are sampled.

    `offsets` has for each sequence how many tokens the client has already.
    """

    request_id: RequestID
    offsets: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]] = []
    cancel_when_closed: bool = sent(False)
