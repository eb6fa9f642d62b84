"""Makes venvs with older official clients, for the contract tests.

python -m tests.server.make_venvs FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSIONS = ("0.22.0", "0.24.1", "0.30.0")


def main(folder: Path) -> None:
    """One venv per version; those that are there are kept."""
    for version in VERSIONS:
        venv = folder / f"tinker-{version}"
        if not venv.exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            pip = [str(venv / "bin" / "pip"), "install", "-q", f"tinker=={version}"]
            subprocess.run(pip, check=True)
        print(venv)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
