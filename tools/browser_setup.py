"""Installs Debian's Chromium for the tests of the page, where that can be done; never fails.

    python tools/browser_setup.py

It needs Debian, its apt and root. Anywhere else it says so, and the tests in tests/page skip with
the reason; CHROMIUM names a browser that is elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 300


def browser() -> str | None:
    """The path of a Chromium on this machine; None if there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def obstacle() -> str | None:
    """Why it cannot be installed here; None if it can."""
    if not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        return "this is no Debian with apt-get"
    if os.geteuid() != 0:
        return "only root may install packages (apt-get install chromium)"
    return None


def main() -> None:
    """Installs it if it is missing, and says what was done."""
    if browser() is not None:
        return
    reason = obstacle()
    if reason is None:
        print("Installing Debian's Chromium for the tests of the page ...", flush=True)
        reason = install()
    if reason is not None:
        print(f"The tests of the page will be skipped: no Chromium, and {reason}.", flush=True)


def install() -> str | None:
    """Runs apt-get; why it failed, or None."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["--yes", "--quiet", "--no-install-recommends"]
    for command in (
        ["apt-get", "install", *options, "chromium"],
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", *options, "chromium"],
    ):
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"apt-get failed: {error}"
        if browser() is not None:
            return None
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"apt-get failed: {''.join(last)}"


if __name__ == "__main__":
    main()
