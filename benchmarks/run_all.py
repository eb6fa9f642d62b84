"""Runs every benchmark and keeps its lines in `benchmarks/results.json`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    lines = [line for path in sorted(HERE.glob("bench_*.py")) for line in run(path)]
    (HERE / "results.json").write_text(json.dumps(lines, indent=2) + "\n")
    missed = [line["question"] for line in lines if line.get("ok") is False]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed and options.check else 0


def run(path: Path) -> list[dict[str, object]]:
    """The JSON lines one benchmark prints, shown as they come."""
    print(f"# {path.name}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(path)], check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    )
    print(done.stdout, end="", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    sys.exit(main())
