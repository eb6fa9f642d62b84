"""Scenario runs shared by all tests of a session, also by those of other xdist workers."""

from __future__ import annotations

import ast
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.children import run_module

Outcome = dict[str, Any]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """A JSON value by its name, made once per test session by the first test that asks.

    What fails is not tried again: each test that asks gets the same failure at once.
    """
    folder = tmp_path_factory.getbasetemp()
    if folder.name.startswith("popen-"):
        folder = folder.parent  # of all workers

    def value(name: str, make: Callable[[], Any]) -> Any:
        path = folder / f"contract-{name}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                path.write_text(json.dumps(attempt(make)))
        made = json.loads(path.read_text())
        assert made["failure"] is None, made["failure"]
        return made["value"]

    return value


def attempt(make: Callable[[], Any]) -> Outcome:
    """The value that is made, or why it could not be made."""
    try:
        return {"value": make(), "failure": None}
    except AssertionError as error:
        return {"value": None, "failure": str(error)}


@pytest.fixture(scope="session")
def outcome_of(shared: Callable[[str, Callable[[], Any]], Any]) -> Callable[[str], Outcome]:
    """What came of all scenarios of a module of this package."""

    def outcome(module: str) -> Outcome:
        found: Outcome = shared(
            module, lambda: run_module(f"tests.contract.{module}", timeout_s=240)
        )
        return found

    return outcome


def scenario_names(module: str) -> list[str]:
    """The scenarios a module registers, read from its source so that collecting stays cheap."""
    names = []
    source = Path(__file__).with_name(f"{module}.py").read_text()
    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", ()):
            assert isinstance(node, ast.FunctionDef)
            if isinstance(decorator, ast.Name) and decorator.id == "scenario":
                names.append(node.name)
            elif isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "scenario_of":
                names += [f"{node.name}[{ast.literal_eval(case)}]" for case in decorator.args]
    return names
