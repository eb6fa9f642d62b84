"""Logs once that a server cannot be reached, and once that it can be again.

A single broken connection is not logged: the next try usually succeeds. Used on the loop thread
only.
"""

from __future__ import annotations

import logging

from tinkex.client.clock import Clock
from tinkex.errors import APIConnectionError, APITimeoutError

__all__ = ["Outage"]

log = logging.getLogger("tinkex")

_QUIET_S = 1.0


class Outage:
    """The time for which requests to one server have been failing."""

    def __init__(self, clock: Clock, base_url: str) -> None:
        self._clock = clock
        self._base_url = base_url
        self._since: float | None = None
        self._is_announced = False

    def note_retry(self, error: APIConnectionError) -> None:
        """A request had no answer and is sent again."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        # A request that timed out has been silent for long already.
        is_long = isinstance(error, APITimeoutError) or now - self._since >= _QUIET_S
        if is_long and not self._is_announced:
            self._is_announced = True
            log.warning("%s Retrying; accepted requests are not lost.", error.message)

    def note_answer(self) -> None:
        """A request was answered."""
        if self._since is None:
            return
        if self._is_announced:
            lasted_s = self._clock.monotonic() - self._since
            log.warning("Connected to %s again after %.0f s.", self._base_url, lasted_s)
        self._since, self._is_announced = None, False
