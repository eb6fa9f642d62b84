"""What a runtime may leave behind: nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.support.waiting import wait_until


def client_threads() -> list[str]:
    """The names of the live threads that clients started."""
    return [t.name for t in threading.enumerate() if t.name.startswith("tinkex")]


def sockets_to(port: int) -> int:
    """How many sockets of this process are connected to a port."""
    connections = psutil.Process().net_connections(kind="tcp")
    return sum(1 for found in connections if found.raddr and found.raddr.port == port)


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Fails if the block leaves client threads behind that were not there before."""
    before = len(client_threads())
    yield
    gc.collect()
    wait_until(lambda: len(client_threads()) <= before)
