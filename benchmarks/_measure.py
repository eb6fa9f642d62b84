"""Code shared by benchmarks: sides measured in turn, one JSON line per result, one command line.

A benchmark is a table of questions; each question is measured by itself, so that a single one can
be run in seconds (`--only`), and a question that fails is reported and does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._kept import kept
from benchmarks._sides import end_all

ROOT = Path(__file__).resolve().parent.parent

Question = Callable[[int], bool]
"""Measures with this many rounds, prints its lines, and returns whether every bar was met."""


def run_questions(
    about: str | None,
    questions: dict[str, Question],
    rounds: int = 5,
    by_name: dict[str, Question] | None = None,
) -> int:
    """Runs the command line of a benchmark; returns its exit code.

    `by_name` are questions too long or too special for a run of everything: only `--only` runs
    them.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each side")
    parser.add_argument("--only", help="names, or parts of names, by comma")
    parser.add_argument("--list", action="store_true", help="print the questions' names and leave")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    chosen = questions
    if options.only:
        every = questions | (by_name or {})
        parts = options.only.split(",")
        # A name in full means that one; a part of names, all that have it.
        chosen = {n: q for n, q in every.items() if n in parts} or {
            n: q for n, q in every.items() if any(part in n for part in parts)
        }
    if options.list:
        print("\n".join(questions | (by_name or {})))
        return 0
    if not chosen:
        parser.error(f"no question matches {options.only!r}; --list shows them")
    signal.signal(signal.SIGTERM, _give_up)
    try:
        with kept:
            met = [_answer(name, question, options.rounds) for name, question in chosen.items()]
    finally:
        end_all()  # also what a question that failed has left running
    return 0 if all(met) or not options.check else 1


def _give_up(*_: object) -> None:
    """Ends the process at once, with all sides: a client would retry a dead server for ever."""
    end_all()
    os._exit(143)


def _answer(name: str, question: Question, rounds: int) -> bool:
    try:
        return question(rounds)
    except Exception as error:
        traceback.print_exc()
        print(
            json.dumps({"question": name, "ok": False, "error": f"{type(error).__name__}: {error}"})
        )
        return False


def alternate(
    sides: dict[str, Callable[[], float]], rounds: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Returns the measurements of each side, A B A B ...; the first `warmups`
    rounds are dropped."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warmups + rounds):
        for name, measure in sides.items():
            value = measure()
            print(f"  {name} {value:.4g}", file=sys.stderr, flush=True)
            if turn >= warmups:
                found[name].append(value)
    return found


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds the work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def faster(
    question: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    at_least: float,
    **figures: Any,
) -> bool:
    """Reports the speed of our side over theirs, from seconds of both."""
    ratio = statistics.median(theirs) / statistics.median(ours)
    figures = {"paired": paired(theirs, ours), **figures}
    sides = {"ours": summary(ours), "theirs": summary(theirs)}
    return report(question, ratio, at_least=at_least, **sides, **figures)


def costlier(
    question: str, ours: Sequence[float], base: Sequence[float], *, at_most: float, **figures: Any
) -> bool:
    """Reports the cost of our side over the base's, from measurements of both."""
    ratio = statistics.median(ours) / statistics.median(base)
    figures = {"paired": paired(ours, base), **figures}
    return report(
        question, ratio, at_most=at_most, ours=summary(ours), base=summary(base), **figures
    )


def report(
    question: str,
    ratio: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    **figures: Any,
) -> bool:
    """Prints one result; returns whether the ratio is on the right side of its bar,
    if it has one."""
    is_met = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
    line: dict[str, Any] = {"question": question, "ratio": round(ratio, 4)}
    bars = {"at_least": at_least, "at_most": at_most}
    line |= {name: round(bar, 4) for name, bar in bars.items() if bar is not None}
    line |= {"ok": is_met, **figures, "machine": machine()}
    print(json.dumps(line), flush=True)
    return is_met


def summary(values: Sequence[float]) -> dict[str, float]:
    """Returns median and spread of repeated measurements."""
    return {
        "median": _short(statistics.median(values)),
        "min": _short(min(values)),
        "max": _short(max(values)),
        "n": len(values),
    }


def paired(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Returns median and spread of the ratios within each round, from which drift cancels."""
    return summary([a / b for a, b in zip(above, below, strict=True)])


def machine() -> str:
    """Returns a description of the machine."""
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"


def cpu_of(command: Sequence[str]) -> float:
    """Returns the CPU seconds (user and system) of a command in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(commands: dict[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """Returns the CPU seconds of each command, measured in turn; one unmeasured
    round warms the caches."""
    sides = {name: lambda command=command: cpu_of(command) for name, command in commands.items()}
    return alternate(sides, rounds)


@contextmanager
def loopback(**options: Any) -> Iterator[str]:
    """Returns the base URL of a scripted protocol server in a process of its own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._loopback", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(30)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
