"""The delay after a 429: requests wait until the server's deadline.

Without a 429 every request passes at once. There is one limiter per tenant (base URL and key),
which all clients of a runtime share.
"""

from __future__ import annotations

from tinkex.client.clock import Clock


class RateLimiter:
    """Holds back new requests of one tenant until the server's deadline has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff_until: float | None = None
        self._limited_at = 0.0

    @property
    def backoff_until(self) -> float | None:
        """The monotonic time until which requests are held back; None if the gate is open."""
        deadline = self._backoff_until
        if deadline is not None and self._clock.monotonic() >= deadline:
            return None
        return deadline

    @property
    def is_limited(self) -> bool:
        """Whether requests are held back now."""
        return self.backoff_until is not None

    def hold(self, retry_after_s: float | None) -> None:
        """Closes the gate after a 429; the deadline only ever moves forward."""
        if retry_after_s is None:
            return
        now = self._clock.monotonic()
        deadline = now + retry_after_s
        self._limited_at = now
        if self._backoff_until is None or deadline > self._backoff_until:
            self._backoff_until = deadline

    def note_success(self, started_at: float) -> None:
        """Opens the gate if the request that went well began after the 429."""
        if started_at > self._limited_at:
            self._backoff_until = None

    async def wait(self) -> None:
        """Returns once the gate is open; looks again after every wait, since it may have moved."""
        while (deadline := self.backoff_until) is not None:
            await self._clock.sleep(deadline - self._clock.monotonic())
