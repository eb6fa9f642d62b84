"""The tests pass where Ctrl-C is ignored, as under `nohup make test &` and cron: the first
`conftest.py` takes that back for the tests and so for the programs they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IGNORING = ["/bin/bash", "-c", 'trap "" INT HUP QUIT; exec "$@"', "_"]


@pytest.mark.parametrize(
    "test",
    [
        "tests/unit/client/test_runtime.py::test_ctrl_c_ends_a_wait_at_once",
        "tests/faults/test_processes.py::test_a_process_that_waits_can_be_interrupted",
    ],
)
def test_ctrl_c_reaches_tests_and_their_programs_where_it_is_ignored(test: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", test]
    ran = subprocess.run([*IGNORING, *command], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:]
