"""Fixtures shared by the integration and the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.loopback import LoopbackServer
from tinkex import Config, Runtime, ServiceClient

Connect = Callable[..., ServiceClient]
NEVER_S = 1e6
"""A heartbeat interval that no test reaches by accident."""


def make_config(server: LoopbackServer, **settings: Any) -> Config:
    """A Config for this server alone: nothing is read from the environment or from files."""
    settings = {"api_key": "tml-a", "heartbeat_interval_s": NEVER_S} | settings
    return Config(**({"base_url": server.url} | settings), environ={}, files=())


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    """A loopback server of this test's own."""
    with LoopbackServer() as running:
        yield running


@pytest.fixture
def clock() -> FakeClock:
    """A clock on which waits of up to a minute cost nothing."""
    return FakeClock(skip_up_to=60)


@pytest.fixture
def runtime(clock: FakeClock) -> Iterator[Runtime]:
    """A started runtime of this test's own."""
    running = Runtime(clock=clock)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def connect(server: LoopbackServer, runtime: Runtime) -> Connect:
    """Makes a ServiceClient of the test's runtime and server, with other settings if given."""

    def make(**settings: Any) -> ServiceClient:
        return ServiceClient(config=make_config(server, **settings), runtime=runtime)

    return make
