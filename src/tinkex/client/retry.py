"""What may be sent again, and when.

Pure: decides from values. Knows nothing of sockets, sleep or threads. The numbers: statuses 408,
409, 429 and 5xx, and broken connections; the server's own word first (`x-should-retry`,
`retry-after-ms`, `retry-after`), else half a second doubling to ten, with jitter. Training and
polls wait a minute at most at the server's word; samples wait as long as a 429 says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from tinkex.errors import ValidationError

MAX_BACKOFF_S = 60.0
"""Training and polls ignore a longer `Retry-After`."""
MAX_EMPTY_400 = 16


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long, and at which intervals, a request is sent again.

    >>> RetryPolicy(max_retries=3).delay_s(1, None, 1.0)
    1.0

    Raises:
        ValidationError: a number makes no sense.
    """

    max_retries: int | None = None
    budget_s: float = 300.0
    base_s: float = 0.5
    max_s: float = 10.0
    jitter: float = 0.25
    max_in_flight: int | None = None
    """For samples: at most so many at once; None leaves that to config and server."""

    def __post_init__(self) -> None:
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValidationError(f"max_in_flight={self.max_in_flight} must be 1 or more, or None.")
        if self.max_retries is not None and self.max_retries < 0:
            raise ValidationError(f"max_retries={self.max_retries} must be 0 or more, or None.")
        if self.base_s <= 0 or self.max_s < self.base_s:
            raise ValidationError(
                f"base_s={self.base_s} must be above 0 and max_s={self.max_s} not below it."
            )
        if not 0 <= self.jitter <= 1:
            raise ValidationError(f"jitter={self.jitter} must lie between 0 and 1.")

    def allows(self, retries_made: int, elapsed_s: float) -> bool:
        """Whether one more try is within the policy.

        Args:
            retries_made: How many tries followed the first.
            elapsed_s: Seconds since the first.
        """
        if self.max_retries is not None and retries_made >= self.max_retries:
            return False
        return elapsed_s < self.budget_s

    def delay_s(self, retries_made: int, retry_after_s: float | None, chance: float) -> float:
        """Seconds to wait before the next try; the server's own figure if it gave one.

        Args:
            retries_made: How many tries followed the first.
            retry_after_s: The wait that the server requested, if it did.
            chance: A random number from 0 to 1, for the jitter.
        """
        if retry_after_s is not None:
            return retry_after_s
        whole = min(self.base_s * 2.0 ** min(retries_made, 32), self.max_s)
        return whole * (1 - self.jitter * (1 - chance))


NO_RETRIES = RetryPolicy(max_retries=0)


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling retries under the official SDK's names; passing one is the opt-in.

    `max_connections` bounds the samples of one client that are on their way at once.
    """

    max_connections: int = 1000
    progress_timeout: float = 7200.0
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    enable_stuck_detection: bool = True

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ValidationError(f"max_connections={self.max_connections} must be 1 or more.")

    def to_policy(self) -> RetryPolicy:
        """The same wishes as a RetryPolicy; one without retries if they are switched off."""
        if not self.enable_retry_logic:
            return RetryPolicy(max_retries=0, max_in_flight=self.max_connections)
        return RetryPolicy(
            max_in_flight=self.max_connections,
            budget_s=self.progress_timeout if self.enable_stuck_detection else float("inf"),
            base_s=self.retry_delay_base,
            max_s=self.retry_delay_max,
            jitter=self.jitter_factor,
        )


def chosen_policy(
    retry: RetryPolicy | None, config: RetryConfig | None, *, is_retrying: bool = False
) -> RetryPolicy | None:
    """The policy of a sampling client, given as ours or as the official SDK's; None for none.

    With `is_retrying` a client for which nothing is given retries as the official one does.
    """
    if retry is not None:
        return retry
    if config is None and is_retrying:
        config = RetryConfig()
    return None if config is None else config.to_policy()


def is_retryable_status(status: int) -> bool:
    """Whether a status, by itself, means "try again"."""
    return status in (408, 409, 429) or status >= 500


def should_retry(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer means "try again": the server's word first, then its status.

    A 400 without a body does not come from the server but from something in between.
    """
    word = headers.get("x-should-retry", "").lower()
    if word in ("true", "false"):
        return word == "true"
    return is_retryable_status(status) or (status == 400 and not body)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """The server's `Retry-After` in seconds, without a bound; None without one.

    >>> retry_after_s({"retry-after-ms": "1500"}, now=0.0)
    1.5
    """
    wait = _milliseconds(headers.get("retry-after-ms"))
    if wait is None:
        wait = _seconds_or_date(headers.get("retry-after"), now)
    return wait if wait is not None and 0 < wait < math.inf else None


def backoff_s(asked_s: float | None) -> float | None:
    """The `Retry-After` that training and polls use: None if it is over a minute.

    >>> backoff_s(30.0), backoff_s(300.0)
    (30.0, None)
    """
    return None if asked_s is None or asked_s > MAX_BACKOFF_S else asked_s


def _milliseconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text) / 1000
    except ValueError:
        return None


def _seconds_or_date(text: str | None, now: float) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError, IndexError):  # of dates that are none
        return None
