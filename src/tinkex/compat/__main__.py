"""`python -m tinkex.compat [--replace] script.py ...` runs a script with Tinkex as `tinker`.

`-m module ...` runs a module. The script sees its own arguments in `sys.argv`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tinkex.compat import install
from tinkex.errors import ConfigError

USAGE = "usage: python -m tinkex.compat [--replace] (script.py | -m module) [argument ...]"


def main(arguments: list[str]) -> int:
    """Runs the script or module; what it exits with is raised as SystemExit."""
    replace = arguments[:1] == ["--replace"]
    rest = arguments[1:] if replace else arguments
    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if not rest or rest[0].startswith("-"):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    if not is_module and not Path(rest[0]).exists():
        sys.stderr.write(f"There is no script {rest[0]}.\n{USAGE}\n")
        return 2
    try:
        install(replace=replace)
    except ConfigError as error:
        sys.stderr.write(f"{error.message} Run it with --replace, or uninstall that package.\n")
        return 2
    sys.argv = rest
    if is_module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(rest[0]).resolve().parent))
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
