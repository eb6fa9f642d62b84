"""Fixtures of the client's unit tests: a scripted server, a clock that jumps, a runtime."""

from tests.support.fixtures import clock, connect, runtime, server

__all__ = ["clock", "connect", "runtime", "server"]
