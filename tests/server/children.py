"""Programs the tests run in processes of their own, mostly because of what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_module(module: str, *arguments: str, timeout_s: float = 110) -> Any:
    """The JSON value that `python -m module` prints as its last line."""
    done = start_module(module, *arguments)
    try:
        output, errors = done.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        done.kill()
        _, errors = done.communicate()
        raise AssertionError(f"{module} took too long:\n{errors[-4000:]}") from None
    assert done.returncode == 0, errors[-4000:]
    return json.loads(output.strip().splitlines()[-1])


def children_of(pid: int) -> list[int]:
    """The process ids of the children of a process."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(each) for each in found.stdout.split()]


def start_module(module: str, *arguments: str) -> subprocess.Popen[str]:
    """`python -m module`, running, with the official client's telemetry switched off."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "TINKER_TELEMETRY": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
