"""The public surface means the same to mypy and to pyright."""

import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).with_name("api.py")
ROOT = Path(__file__).parents[2]
CHECKERS = {
    # Only the surface is judged here; the sources have checks of their own.
    "mypy": ["--strict", "--follow-imports=silent", "--no-error-summary", "--no-pretty"],
    "pyright": ["--warnings"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_agree_on_the_public_surface(checker):
    pytest.importorskip(checker)
    ran = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], str(API)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
