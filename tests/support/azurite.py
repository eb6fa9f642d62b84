"""Azurite, a real server of Azure's blob protocol, where it is installed, and a container in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from email.utils import formatdate

import httpx
import pytest

from tests.support.tcp_listener import free_port
from tests.support.waiting import wait_until

__all__ = ["azurite", "container"]

_PROGRAM = "azurite-blob"
_ACCOUNT = "devstoreaccount1"
# Azurite's only account has this key, which its documentation publishes.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of its account."""
    if shutil.which(_PROGRAM) is None:
        pytest.skip("needs Azurite: npm install -g azurite")
    folder = tmp_path_factory.mktemp("azurite")
    address = f"http://127.0.0.1:{(port := free_port())}"
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(folder)]
    command = [_PROGRAM, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(address))
            yield f"{address}/{_ACCOUNT}"
        finally:
            process.terminate()


@pytest.fixture
def container(azurite: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The depot's address of an empty container; the environment has what reaches it."""
    name = f"c{uuid.uuid4().hex}"
    _create(azurite, name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite)
    return f"az://{name}/tinkex"


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code > 0
    except httpx.TransportError:
        return False


def _create(azurite: str, name: str) -> None:
    """Makes the container, by a request signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items())]
    lines += [f"/{_ACCOUNT}/{_ACCOUNT}/{name}", "restype:container"]
    signed = hmac.digest(base64.b64decode(_KEY), "\n".join(lines).encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(signed).decode()}"
    answer = httpx.put(f"{azurite}/{name}?restype=container", headers=headers)
    answer.raise_for_status()
