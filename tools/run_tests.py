"""Runs the tests; a few that fail run once more, alone, and are reported as flaky if they pass.

    python tools/run_tests.py [pytest's arguments]

Thousands of tests start servers, kill processes and cut connections on a shared machine. One of
them that loses a race must be seen and mended, but it does not make the whole run fail. The second
run has the same seed, a process of its own and no neighbours, so that what depends on the code or
on the data fails again. More failures than a few are never run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

MAX_RERUN = 3
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_SOME_FAILED = 1  # pytest's exit status; every other one is an error of the run itself


def main(arguments: list[str]) -> int:
    """The exit status of pytest; 0 also if every failed test passes when it runs alone."""
    seed = f"--randomly-seed={int(time.time())}"
    LAST_FAILED.unlink(missing_ok=True)
    status = _pytest([*arguments, seed])
    if status != _SOME_FAILED:
        return status
    failed = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8")))
    if len(failed) > MAX_RERUN:
        return status
    print(f"\n{len(failed)} failed; once more, alone, with the same seed.", flush=True)
    appended = ["--cov-append"] if "--cov" in arguments else []
    status = _pytest([*arguments, seed, *appended, "-n", "0", *failed])
    if status == 0:
        print("\nFLAKY: these failed among the others and passed alone. Mend them:")
        print("\n".join(f"  {name}" for name in failed), flush=True)
    return status


def _pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
