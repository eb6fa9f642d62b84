"""What a runtime may leave behind: nothing."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil


def client_threads() -> list[str]:
    """The names of the live threads that clients started."""
    return [t.name for t in threading.enumerate() if t.name.startswith("tinkex")]


def sockets_to(port: int) -> int:
    """How many sockets of this process are connected to a port."""
    connections = psutil.Process().net_connections(kind="tcp")
    return sum(1 for found in connections if found.raddr and found.raddr.port == port)


def eventually(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    """Whether the condition comes to hold."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Fails if the block leaves client threads behind that were not there before."""
    before = len(client_threads())
    yield
    gc.collect()
    assert eventually(lambda: len(client_threads()) <= before), client_threads()
