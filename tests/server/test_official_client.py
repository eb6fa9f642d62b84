"""The official client against the real server; the scenarios run together in a child process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.server.children import run_module
from tinkex.server.embedded import EmbeddedServer

_SOURCE = Path(__file__).with_name("official_scenarios.py")
NAMES = [
    node.name
    for node in ast.parse(_SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(d, ast.Name) and d.id == "scenario" for d in node.decorator_list)
]


@pytest.fixture(scope="module")
def failures(server: EmbeddedServer) -> dict[str, str | None]:
    """What went wrong in each scenario."""
    outcome = run_module("tests.server.official_scenarios", server.base_url, server.api_key)
    assert isinstance(outcome, dict)
    return outcome


@pytest.mark.parametrize("name", NAMES)
def test_official_client(name: str, failures: dict[str, str | None]) -> None:
    failure = failures[name]
    assert failure is None, failure
