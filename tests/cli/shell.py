"""Command lines of the installed `tinkex`, run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TINKEX = str(Path(sys.executable).parent / "tinkex")
KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
PATIENCE_S = 60


@dataclass
class Shell:
    """Runs command lines in a folder, with an environment of their own."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        foreign = ("TINKER_", "TINKEX_", "XDG_", "HF_", "NO_COLOR", "FORCE_COLOR", "PYTEST")
        own = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        own["PATH"] = f"{Path(TINKEX).parent}{os.pathsep}{own.get('PATH', '')}"
        self.environ = {**own, "HOME": str(self.folder / "home"), **self.environ}

    def __call__(
        self, *arguments: str, stdin: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TINKEX, *arguments],
            cwd=self.folder,
            env={**self.environ, **environ},
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """The command as a process that is still running."""
        return subprocess.Popen(
            [TINKEX, *arguments],
            cwd=self.folder,
            env=self.environ,
            **{"stdin": subprocess.DEVNULL, **options},
        )

    def script(self, text: str) -> subprocess.CompletedProcess[str]:
        """A line of bash."""
        return subprocess.run(
            ["/bin/bash", "-c", text],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
