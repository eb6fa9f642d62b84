"""Fixtures of the fault tests."""

from tests.faults.on_disk import bench, disk
from tests.store.postgres import empty_postgres_url, postgres_url
from tests.support.fixtures import clock, connect, runtime, server

__all__ = [
    "bench",
    "clock",
    "connect",
    "disk",
    "empty_postgres_url",
    "postgres_url",
    "runtime",
    "server",
]
