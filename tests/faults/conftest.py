"""Fixtures of the fault tests."""

from tests.support.fixtures import clock, connect, runtime, server

__all__ = ["clock", "connect", "runtime", "server"]
