"""`make test` runs a few failed tests once more, and only a test that passes alone is forgiven."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_tests.py"
ALWAYS = "def test_always():\n    assert False\n"
ONCE = """
import pathlib
def test_once():
    mark = pathlib.Path("was-here")
    seen = mark.exists()
    mark.touch()
    assert seen
"""
MANY = "\n".join(f"def test_{n}():\n    assert False\n" for n in range(4))


def run(folder: Path, tests: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, str(TOOL)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout


def test_a_test_that_passes_alone_is_reported_and_forgiven(tmp_path: Path) -> None:
    status, printed = run(tmp_path, ONCE)
    assert status == 0
    assert "FLAKY" in printed
    assert "test_it.py::test_once" in printed.split("FLAKY")[1]


@pytest.mark.parametrize("tests", [ALWAYS, ONCE + ALWAYS])
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path, tests: str) -> None:
    status, printed = run(tmp_path, tests)
    assert status == 1
    assert "FLAKY" not in printed


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    status, printed = run(tmp_path, MANY)
    assert status == 1
    assert printed.count("4 failed") == 1


def test_an_error_of_the_run_itself_stays_one(tmp_path: Path) -> None:
    status, _ = run(tmp_path, "import no_such_module\n")
    assert status == 2
