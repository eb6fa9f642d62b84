"""Programs that check the files of `deploy/`: of the dev extra, or of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def program(name: str) -> str:
    """The path of a program; without it the test is skipped."""
    path = shutil.which(name, path=_SEARCH_PATH)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(name: str, *words: str | Path, stdin: str | None = None) -> str:
    """What a program prints; the test fails with its messages if it does."""
    done = call(name, *words, stdin=stdin)
    assert done.returncode == 0, f"{name} {words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def call(
    name: str, *words: str | Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A run of a program, however it ends."""
    command = [program(name), *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
