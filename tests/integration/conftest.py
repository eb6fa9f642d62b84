"""Fixtures of the integration tests."""

from tests.support.fixtures import clock, connect, runtime, server

__all__ = ["clock", "connect", "runtime", "server"]
