"""What holds for every test: no credential or server of the machine it runs on is used."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

FOREIGN = ("TINKER_", "TINKEX_API_KEY", "TINKEX_BASE_URL", "CLOUDFLARE_ACCESS_")


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    yield
    os.environ.update(removed)
