"""Fixtures of the fault tests."""

from tests.faults.on_disk import bench, disk
from tests.support.fixtures import clock, connect, runtime, server

__all__ = ["bench", "clock", "connect", "disk", "runtime", "server"]
