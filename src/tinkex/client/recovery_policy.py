"""How a lost run is recovered: number of attempts, checkpoint, callbacks.

Pure: decides from values. Knows nothing of requests, threads or sleep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tinkex.errors import (
    APIConnectionError,
    APIStatusError,
    GoneError,
    NotFoundError,
    PromiseLostError,
    RequestFailedError,
    TinkexError,
    ValidationError,
)
from tinkex.types.checkpoint import Checkpoint, TrainingRun

if TYPE_CHECKING:
    from tinkex.client.training import TrainingClient

__all__ = ["EndReason", "Recovered", "RecoveryPolicy", "candidates", "reason_of", "reason_told_by"]

EndReason = Literal["ended", "corrupted", "lost"]
"""Why a run cannot go on: it is over, its state is damaged, or the server does not know it."""

ChooseCheckpoint = Callable[[Sequence[Checkpoint]], Checkpoint | None]
_TRY_AGAIN = {408, 409, 429}


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes on under a new id."""

    run_id: str
    """The run that was lost."""
    reason: EndReason
    client: TrainingClient
    """Trains the new run."""
    checkpoint: Checkpoint
    """Where it goes on from; its `user_metadata` is what was saved with it."""
    attempts: int


class RecoveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `RecoveryMonitor` recovers a run.

    `checkpoint` is "newest", or a function that chooses from the checkpoints, newest first; one
    that turns out to be damaged or gone is not offered again. Between attempts there is a pause of
    `base_s` that doubles up to `max_s`. The run's state is read every `poll_s` seconds; with
    None only when `WatchedRun.recover` is called. Callbacks run in the thread that recovers.

    >>> RecoveryPolicy(base_s=2.0).pause_s(attempt=3)
    8.0

    Raises:
        ValidationError: a number makes no sense.
    """

    max_attempts: int = 3
    checkpoint: Literal["newest"] | ChooseCheckpoint = "newest"
    with_optimizer: bool = True
    base_s: float = 1.0
    max_s: float = 60.0
    poll_s: float | None = 30.0
    on_detected: Callable[[str, EndReason], Any] | None = None
    """Called with the id of the run and why it cannot go on."""
    on_recovered: Callable[[Recovered], Any] | None = None
    on_exhausted: Callable[[str, TinkexError], Any] | None = None
    """Called with the id of the run and the last error when all attempts have failed."""

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ValidationError(
                f"max_attempts={self.max_attempts!r} must be an integer of at least 1."
            )
        are_finite = _is_finite(self.base_s) and _is_finite(self.max_s)
        if not are_finite or self.base_s < 0 or self.max_s < self.base_s:
            raise ValidationError(
                f"base_s={self.base_s!r} must be 0 or more and max_s={self.max_s!r} not below it, "
                "in seconds."
            )
        if self.poll_s is not None and not (_is_finite(self.poll_s) and self.poll_s > 0):
            raise ValidationError(f"poll_s={self.poll_s!r} must be above 0, in seconds, or None.")
        if self.checkpoint != "newest" and not callable(self.checkpoint):
            raise ValidationError(
                f"checkpoint={self.checkpoint!r} must be 'newest' or a function that chooses one."
            )

    def pause_s(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1, has failed."""
        return min(self.base_s * 2.0 ** min(attempt - 1, 32), self.max_s)

    def choose(self, offered: Sequence[Checkpoint]) -> Checkpoint | None:
        """The checkpoint to go on from; None if there is none."""
        if callable(self.checkpoint):
            return self.checkpoint(offered)
        return offered[0] if offered else None


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def reason_of(run: TrainingRun) -> EndReason | None:
    """Why the server says that a run cannot go on; None if it can."""
    if run.corrupted:
        return "corrupted"
    return "ended" if run.ended else None


def reason_told_by(error: BaseException | None) -> EndReason | None:
    """Why a run cannot go on, where an error of its work leaves no doubt; None otherwise."""
    if isinstance(error, GoneError):
        return "ended"
    return "lost" if isinstance(error, PromiseLostError) else None


def candidates(checkpoints: Iterable[Checkpoint], bad: set[str], now: datetime) -> list[Checkpoint]:
    """The training states to go on from, newest first: not expired, not found to be bad."""
    good = (
        each
        for each in checkpoints
        if each.checkpoint_type == "training"
        and each.tinker_path not in bad
        and (each.expires_at is None or each.expires_at > now)
    )
    return sorted(good, key=lambda each: each.time, reverse=True)


def is_fault_of_checkpoint(error: TinkexError) -> bool:
    """Whether loading failed so that loading the same checkpoint again would, too."""
    if isinstance(error, NotFoundError | RequestFailedError):
        return True
    if isinstance(error, APIConnectionError) or not isinstance(error, APIStatusError):
        return False
    return error.status < 500 and error.status not in _TRY_AGAIN
