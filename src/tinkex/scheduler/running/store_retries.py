"""Retries while the store fails, for the parts that run work on an engine and store results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tinkex.store import StoreError

__all__ = ["StoreRetries"]

T = TypeVar("T")

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0

_logger = logging.getLogger(__name__)


class StoreRetries:
    """Repeats calls that fail by the store: no request causes these errors, and computed results
    must not be lost. `is_over` returns whether the server is ending."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def run(self, call_store: Callable[[], T]) -> T:
        """What `call_store` returns once the store works.

        Raises:
            StoreError: the server is ending, or the store was closed.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return call_store()
            except StoreError as error:
                if error.code == "store-closed" or self._is_over():
                    raise
                _logger.error("The store failed; retrying: %s", error.__cause__ or error)
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
