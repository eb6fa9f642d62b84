"""Servers under attack: real processes with the null engine, and keys for any number of tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.driving import null_config
from tests.support.keys import new_tenant_key
from tinkex.server.embedded import EmbeddedServer

NewKey = Callable[[], str]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="session")
def server(data_dir: Path) -> Iterator[EmbeddedServer]:
    """A server that ends polls and live streams quickly, so that campaigns do not wait."""
    config = null_config(data_dir, poll_hold_s=0.02, error_hold_s=0.0, live_stream_s=0.02)
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="session")
def new_key(server: EmbeddedServer, data_dir: Path) -> NewKey:
    """Makes a key of a new tenant while the server runs."""
    return lambda: new_tenant_key(data_dir)
