"""Runs the benchmarks of training and sampling; keeps `results.json`, draws `results.svg`.

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
RESULTS = HERE / "results.json"
MOST_S = 900.0
"""Timeout of one benchmark, in seconds."""

APART = {
    "bench_client_cost": "the client, which changes seldom",
    "bench_startup": "the client, which changes seldom",
    "bench_page": "the page in a browser, which needs Chromium",
    "bench_load": "the server under load, without training or sampling",
    "bench_workers": "several workers, without training or sampling at size",
    "bench_worker_restart": "several workers, without training or sampling at size",
    "bench_codec": "a choice between ways to build it, without a bar",
    "bench_http_library": "a choice between ways to build it, without a bar",
    "bench_server_floor": "a choice between ways to build it, without a bar",
}
"""Questions that do not fit into half an hour, and why; they run with `--only`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    parser.add_argument("--only", help="files whose name contains one of these, by comma")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else [""]
    lines: list[dict[str, Any]] = []
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for path in sorted(HERE.glob("bench_*.py")):
        if not options.only and path.stem in APART:
            continue
        if any(part in path.stem for part in parts):
            lines += run(path)
            keep(lines, before)
    missed = [str(line["question"]) for line in lines if line.get("ok") is False]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed and options.check else 0


def run(path: Path) -> list[dict[str, Any]]:
    """Runs one benchmark and returns its JSON lines, printed as they arrive."""
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


def keep(lines: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    """Writes the results so far, so that an interrupted run keeps them.

    Results of questions that this run leaves out are kept.
    """
    measured = {line["question"] for line in lines}
    known = [line for line in before if line["question"] not in measured] + lines
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")
    RESULTS.with_suffix(".svg").write_text(picture(known), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
