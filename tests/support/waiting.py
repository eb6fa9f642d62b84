"""Waits for what another thread or process brings about, with a limit that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(holds: Callable[[], bool], timeout_s: float = 45) -> None:
    """Returns when it holds; fails the test after the timeout, before pytest's own ends it."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to hold within {timeout_s:g} s"
        time.sleep(0.02)
