"""Real servers in processes of their own, driven by the official client and by plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.store.postgres import empty_postgres_url, postgres_url
from tests.support.keys import new_tenant_key
from tinkex.server.embedded import EmbeddedServer

__all__ = ["data_dir", "empty_postgres_url", "http", "make_key", "postgres_url", "server"]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def server(data_dir: Path) -> Iterator[EmbeddedServer]:
    """One server with the null engine, shared by every test that does not stop it."""
    with EmbeddedServer(null_config(data_dir)) as running:
        yield running


@pytest.fixture(scope="session")
def make_key(server: EmbeddedServer, data_dir: Path) -> Callable[[], str]:
    """Makes a key of a new tenant while the server runs, as `tinkex keys create` does."""

    def make() -> str:
        return new_tenant_key(data_dir)

    return make


@pytest.fixture
def http(server: EmbeddedServer) -> Iterator[Http]:
    """Plain HTTP to the shared server with the first tenant's key."""
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, server.api_key)
