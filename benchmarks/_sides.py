"""Sides that run in processes of their own: one computes, the others wait on their input.

Near side: `Side` starts a script and calls its functions. Far side: `serve` answers calls, one
JSON line each way. Standard library only: the far side may live in another environment. What a
library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / ".bench" / "logs"

_started: list[subprocess.Popen[Any]] = []


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts a process that `end_all` ends."""
    process = subprocess.Popen(command, **options)
    _started.append(process)
    return process


def end_all() -> None:
    """Ends every process started here that still runs."""
    for process in _started:
        if process.poll() is None:
            process.terminate()


class Side:
    """A script in a process of its own; `call` runs one of its functions and waits.

    with Side(["python", "benchmarks/_side_peft.py"]) as peft:
        seconds = peft.call("step", rows=rows)

    Its output is written to `.bench/logs`; the error of a failed call shows the end of it.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log_path = LOGS / f"{Path(command[1]).stem.strip('_')}.log"
        self._log = self._log_path.open("wb")
        self._process = start(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **import_path(), **(environment or {})},
            cwd=ROOT,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, function: str, **arguments: Any) -> Any:
        """Calls a function of the script and returns its result."""
        self.send(function, **arguments)
        return self.receive()

    def send(self, function: str, **arguments: Any) -> None:
        """Starts a call without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Returns the result of the call that was sent."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            end = self._log_path.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self._log_path.stem}: {answer['error']}\n{end}")
        return answer["value"]


def import_path() -> dict[str, str]:
    """Returns the environment variable that lets a child import this checkout."""
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}


def serve(functions: dict[str, Callable[..., Any]]) -> None:
    """Answers calls until the input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": functions[name](**arguments)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
