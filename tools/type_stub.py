"""Writes `tinkex/types/__init__.pyi`, from which type checkers know the public types.

`tinkex.types` loads each name when it is first used, from one table of names, which checkers cannot
follow. `python tools/type_stub.py` makes the stub from it, `--check` fails if it is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "tinkex" / "types"
STUB = SOURCE / "__init__.pyi"
NOTICE = """\
# Made by tools/type_stub.py from the table in __init__.py: change that, then run it again.
# ruff: noqa: I001

"""


def made() -> str:
    """The stub as it should be: `X as X` is how a stub exports a name."""
    from tinkex.types import _MODULES

    parts = [NOTICE]
    for module, names in _MODULES.items():
        lines = "".join(f"    {name} as {name},\n" for name in names.split())
        parts.append(f"from tinkex.types.{module} import (\n{lines})\n")
    return "".join(parts)


def main() -> int:
    """Writes the stub, or says that it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = made()
    if STUB.is_file() and STUB.read_text(encoding="utf-8") == text:
        return 0
    if parser.parse_args().check:
        sys.stderr.write(f"{STUB.name} is out of date: run python tools/type_stub.py\n")
        return 1
    STUB.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
