"""Runs every benchmark that has a bar; keeps the answers in `results.json`, draws `results.svg`.

A benchmark that fails, or takes too long, is one line of the results and does not stop the rest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._plot import picture

HERE = Path(__file__).resolve().parent
MOST_S = 900.0
"""No benchmark takes this long unless something hangs."""

CHOICES = {"bench_codec", "bench_http_library", "bench_server_floor"}
"""Questions without a bar, asked once to choose between ways to build something: by `--only`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    parser.add_argument("--only", help="files whose name contains one of these, by comma")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else [""]
    lines: list[dict[str, Any]] = []
    for path in sorted(HERE.glob("bench_*.py")):
        if not options.only and path.stem in CHOICES:
            continue
        if any(part in path.stem for part in parts):
            lines += run(path)
            keep(lines)
    missed = [str(line["question"]) for line in lines if line.get("ok") is False]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed and options.check else 0


def run(path: Path) -> list[dict[str, Any]]:
    """The JSON lines one benchmark prints, shown as they come."""
    print(f"# {path.name}", file=sys.stderr, flush=True)
    began, lines = time.monotonic(), []
    process = subprocess.Popen(
        ["timeout", str(MOST_S), sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("{"):
            lines.append(json.loads(line))
    if process.wait():
        error = f"ended with code {process.returncode}"
        lines.append({"question": path.stem, "ok": False, "error": error})
    print(f"# {path.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def keep(lines: list[dict[str, Any]]) -> None:
    """Writes what is known so far, so that a run cut short leaves its answers."""
    (HERE / "results.json").write_text(json.dumps(lines, indent=2) + "\n")
    (HERE / "results.svg").write_text(picture(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
