"""What benchmarks share: fresh processes, medians, and one JSON line."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def cpu_of(command: Sequence[str]) -> float:
    """CPU seconds (user and system) a command takes in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(commands: dict[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each command, measured in turn; one unmeasured round warms the caches."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            seconds = cpu_of(command)
            if turn:
                found[name].append(seconds)
    return found


@contextmanager
def loopback(**options: Any) -> Iterator[str]:
    """The base URL of a scripted protocol server in a process of its own."""
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


def report(question: str, ratio: float, bar: float, **figures: Any) -> bool:
    """Prints the one line of a benchmark; whether the ratio is within its bar."""
    is_within = ratio <= bar
    line = {"question": question, "ratio": round(ratio, 4), "bar": bar, "ok": is_within, **figures}
    line["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {_python()}"
    print(json.dumps(line))
    return is_within


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and spread of repeated measurements."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "n": len(values),
    }


def _python() -> str:
    return platform.python_version()
