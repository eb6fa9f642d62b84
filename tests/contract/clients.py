"""The official client in several versions, each in a virtual environment of its own.

Environments are made on demand under `.contract/<version>` and kept. The version of the
development environment is used from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".contract"

NEWEST = "0.36.0"
DEFAULT_VERSIONS = ("0.24.1", "0.30.4", NEWEST)
ALL_VERSIONS = ("0.22.7", "0.24.1", "0.25.0", "0.30.4", NEWEST)

_INSTALL_S = 600


def chosen_versions() -> tuple[str, ...]:
    """The versions to run: `TINKEX_CONTRACT_VERSIONS` is `all`, or a list with commas."""
    versions = os.environ.get("TINKEX_CONTRACT_VERSIONS", "")
    if versions == "all":
        return ALL_VERSIONS
    return tuple(part.strip() for part in versions.split(",") if part.strip()) or DEFAULT_VERSIONS


def python_of(version: str) -> str:
    """The interpreter of an environment that has this version of the client."""
    if installed_version("tinker") == version:
        return sys.executable
    folder = FOLDER / version
    python, stamp = folder / "bin" / "python", folder / ".installed"
    with _locked(version):
        if not (stamp.is_file() and python.exists()):
            stamp.unlink(missing_ok=True)
            venv.create(folder, with_pip=False, clear=True)
            _install(python, version)
            stamp.write_text(f"tinker=={version}\n")
    return str(python)


def run_client(version: str, script: Path, *arguments: str, timeout_s: float = 150) -> Any:
    """The JSON value that the script prints as its last line under this version's interpreter."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TINKER_", "TINKEX_", "PYTHON", "COV_"))
    }
    done = subprocess.run(
        [python_of(version), str(script), *arguments],
        env={**environment, "TINKER_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"tinker {version}:\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def _install(python: Path, version: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)),
            *("install", "--quiet", "--no-compile", f"tinker=={version}", "numpy"),
        ],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, f"tinker {version} cannot be installed:\n{done.stderr[-3000:]}"


@contextmanager
def _locked(version: str) -> Iterator[None]:
    """One process at a time makes an environment; the others wait and find it made."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{version}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
