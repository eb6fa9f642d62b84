"""An environment with `tinker-cookbook`, in which `tinker` is the official client or Tinkex.

Made on demand under `.contract/cookbook` and kept. It has what `cookbook.txt` pins; all else is
lent by the environment that the tests run in. Tinkex stands behind `tinker` as for a user: by the
distribution in `packages/tinker-shim`, in a folder of its own, on the path of a process or not.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any, Literal

from tests.contract.clients import FOLDER, ROOT

Sdk = Literal["tinker", "tinkex"]

PINS = Path(__file__).with_name("cookbook.txt")
PROGRAM = Path(__file__).with_name("cookbook_run.py")
SHIM = ROOT / "packages" / "tinker-shim"

_HOME = FOLDER / "cookbook"
_SHIM_SITE = FOLDER / "cookbook-shim"
_INSTALL_S = 600


def run(sdk: Sdk, *arguments: str, cwd: Path, timeout_s: float = 300) -> Any:
    """The JSON value that `cookbook_run.py` prints as its last line."""
    python = _environment()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TINKER_", "TINKEX_", "PYTHON", "COV_", "HF_"))
    }
    if sdk == "tinkex":
        environment["PYTHONPATH"] = str(_SHIM_SITE)
    environment |= {"TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf")}
    done = subprocess.run(
        [str(python), "-W", "ignore", str(PROGRAM), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"with {sdk}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def _environment() -> Path:
    """Its interpreter."""
    python, stamp = _HOME / "bin" / "python", _HOME / ".installed"
    wanted = hashlib.sha256(PINS.read_bytes() + _shim_source()).hexdigest()
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "cookbook.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (python.exists() and stamp.is_file() and stamp.read_text() == wanted):
            venv.create(_HOME, with_pip=False, clear=True)
            site = Path(sysconfig.get_path("purelib", vars={"base": str(_HOME)}))
            lent = sysconfig.get_path("purelib")
            # Its own .pth files, such as that of an editable installation, are followed too.
            (site / "lent.pth").write_text(f"import site; site.addsitedir({lent!r})\n")
            _pip(python, "--require-hashes", "--requirement", str(PINS))
            _pip(python, "--no-build-isolation", "--upgrade", "--target", str(_SHIM_SITE), SHIM)
            stamp.write_text(wanted)
    return python


def _shim_source() -> bytes:
    files = [SHIM / "pyproject.toml", *sorted((SHIM / "src").rglob("*.py"))]
    return b"".join(path.read_bytes() for path in files)


def _pip(python: Path, *arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-compile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, f"the cookbook cannot be installed:\n{done.stderr[-3000:]}"
