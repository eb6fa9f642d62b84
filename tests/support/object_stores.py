"""A real S3 server on loopback (moto's), and a bucket of its own for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from moto.server import ThreadedMotoServer

__all__ = ["bucket", "object_store"]


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of an S3 server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The depot's address of an empty bucket; the environment has what reaches it."""
    name = f"b{uuid.uuid4().hex}"
    httpx.put(f"{object_store}/{name}").raise_for_status()
    monkeypatch.setenv("AWS_ENDPOINT", object_store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://{name}/tinkex"
