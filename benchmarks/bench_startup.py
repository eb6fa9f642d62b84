"""How much CPU time do the package's import and its command's start take?

CPU seconds (user and system) of fresh processes, ours and the official client's in turn, a bare
interpreter's cost taken off both: `import tinkex` beside `import tinker`, `tinkex --help` beside
`tinker --help`. Bars: 1/20 and 1/8.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import in_turn, report, summary

BIN = Path(sys.executable).parent
QUESTIONS = {
    "import": (
        1 / 20,
        [sys.executable, "-c", "import tinkex"],
        [sys.executable, "-c", "import tinker"],
    ),
    "--help": (1 / 8, [str(BIN / "tinkex"), "--help"], [str(BIN / "tinker"), "--help"]),
    "version": (1 / 8, [str(BIN / "tinkex"), "version"], [str(BIN / "tinker"), "version"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    results = [answer(name, options.rounds) for name in QUESTIONS]
    return 0 if all(results) or not options.check else 1


def answer(name: str, rounds: int) -> bool:
    bar, ours, theirs = QUESTIONS[name]
    commands = {"ours": ours, "official": theirs, "bare": [sys.executable, "-c", "pass"]}
    seconds = in_turn(commands, rounds)
    bare = statistics.median(seconds["bare"])
    over = {who: [max(s - bare, 1e-4) for s in seconds[who]] for who in ("ours", "official")}
    ratio = statistics.median(over["ours"]) / statistics.median(over["official"])
    figures = {who: summary(values) for who, values in over.items()}
    return report(f"startup: {name}", ratio, at_most=bar, bare=round(bare, 4), **figures)


if __name__ == "__main__":
    sys.exit(main())
