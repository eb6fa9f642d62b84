"""The switch that lets tests kill a process at a named moment: exact, and nothing when unset."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinkex
from tinkex import crashpoints
from tinkex.config import process_settings
from tinkex.errors import ConfigError

PACKAGE = Path(tinkex.__file__).parent


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    crashpoints.arm("")


def passed_in_source() -> set[str]:
    """The points the package really passes."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and ast.unparse(node.func) == "crashpoints.passing":
                assert isinstance(node.args[0], ast.Constant)
                found.add(node.args[0].value)
    return found


def test_every_point_is_passed_somewhere_and_none_is_unknown() -> None:
    assert passed_in_source() == set(crashpoints.POINTS)
    assert len(crashpoints.POINTS) >= 20


def passings(text: str, *points: str) -> tuple[int, str]:
    """How a process ended that was armed and passed these points, and what it said."""
    program = (
        "import sys\n"
        "from tinkex import crashpoints\n"
        "crashpoints.arm(sys.argv[1])\n"
        "for each in sys.argv[2:]:\n"
        "    crashpoints.passing(*each.split('='))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, text, *points], capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_a_process_dies_at_the_passing_that_was_named() -> None:
    text = "result.kept=optim_step:3,store.commit.after:9"
    twice = ["result.kept=optim_step", "result.kept=forward"] * 2
    assert passings(text, *twice, "store.commit.after", "execute.after")[0] == 0
    code, said = passings(text, *twice, "result.kept=optim_step")
    assert code == -signal.SIGKILL
    assert "at result.kept=optim_step:3" in said


def test_a_point_without_a_mark_is_passed_by_every_kind() -> None:
    assert passings("result.kept:2", "result.kept=forward", "result.kept=sample")[0] == -9


def test_points_of_the_engine_are_handed_to_the_engine_they_are_meant_for() -> None:
    first = "engine.call.before=snapshot:2,engine.call.after!"
    crashpoints.arm(f"{first},store.commit.after,engine.start.before@2")
    assert crashpoints.for_engine(1) == first
    assert crashpoints.for_engine(2) == "engine.start.before@2"
    assert crashpoints.for_engine(3) == ""
    crashpoints.passing("engine.start.before")  # in this process it means nothing


@pytest.mark.parametrize("text", ["no.such.point", "result.kept:", "result kept", "result.kept:x"])
def test_a_slip_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TINKEX_TEST_CRASH"):
        crashpoints.arm(text)


def test_the_variable_is_read_by_the_config() -> None:
    assert process_settings({}).crash_at == ""
    assert process_settings({"TINKEX_TEST_CRASH": "start.swept"}).crash_at == "start.swept"
