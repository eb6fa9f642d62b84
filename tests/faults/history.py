"""What clients saw, as an append-only record: every call begins with `invoke` and ends with `ok` or
`fail`; a call without an end got no answer.

Clients of several processes write files of their own; times are of the machine's monotonic clock,
which all of them share. `python -m tests.faults.history FOLDER` prints the calls in a folder.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

Phase = Literal["invoke", "ok", "fail"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a history. `client` and `number` tie the end of a call to its beginning."""

    client: str
    number: int
    phase: Phase
    at: float
    name: str
    arguments: dict[str, Any] = {}
    value: Any = None


class Call(msgspec.Struct, kw_only=True):
    """One call from beginning to end."""

    begun: Event
    ended: Event | None = None

    @property
    def name(self) -> str:
        """What was called."""
        return self.begun.name

    @property
    def is_ok(self) -> bool:
        """Whether it was answered without an error."""
        return self.ended is not None and self.ended.phase == "ok"

    def __str__(self) -> str:
        about = ", ".join(f"{key}={value!r}" for key, value in self.begun.arguments.items())
        return f"{self.begun.client}#{self.begun.number} {self.name}({about})"


class Recorder:
    """Writes one client's part of a history, line by line."""

    def __init__(self, path: Path, client: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._client = client
        self._number = 0
        self._lock = threading.Lock()

    def invoke(self, name: str, /, **arguments: Any) -> int:
        """The number of a call that is about to be made."""
        with self._lock:
            self._number += 1
            self._write(self._number, "invoke", name, arguments, None)
            return self._number

    def ok(self, number: int, name: str, value: Any = None) -> None:
        """Notes the answer to a call."""
        self._write(number, "ok", name, {}, value)

    def fail(self, number: int, name: str, error: BaseException) -> None:
        """Notes the error a call ended with."""
        value = {
            "type": type(error).__name__,
            "message": str(error)[:500],
            "code": getattr(error, "code", None),
        }
        self._write(number, "fail", name, {}, value)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(
        self, number: int, phase: Phase, name: str, arguments: dict[str, Any], value: Any
    ) -> None:
        event = Event(
            client=self._client,
            number=number,
            phase=phase,
            at=time.monotonic(),
            name=name,
            arguments=arguments,
            value=value,
        )
        self._file.write(msgspec.json.encode(event) + b"\n")


def read_history(paths: Iterable[Path]) -> list[Event]:
    """The events of all files, in order of time."""
    events = [
        msgspec.json.decode(line, type=Event)
        for path in paths
        for line in path.read_bytes().splitlines()
    ]
    return sorted(events, key=lambda event: event.at)


def open_calls(paths: Iterable[Path]) -> set[tuple[str, int]]:
    """Client and number of each call without an answer so far, while the clients still write."""
    found: set[tuple[str, int]] = set()
    for path in paths:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                event = msgspec.json.decode(line, type=Event)
                key = (event.client, event.number)
                found.add(key) if event.phase == "invoke" else found.discard(key)
    return found


def calls_of(events: Iterable[Event]) -> list[Call]:
    """The calls in the order they began."""
    calls: dict[tuple[str, int], Call] = {}
    for event in events:
        key = (event.client, event.number)
        if event.phase == "invoke":
            assert key not in calls, f"{key} began twice"
            calls[key] = Call(begun=event)
        else:
            assert calls[key].ended is None, f"{key} ended twice"
            calls[key].ended = event
    return list(calls.values())


def main(folder: Path) -> None:
    """Prints the calls of a campaign in the order they began, and how each ended."""
    for call in calls_of(read_history(folder.iterdir())):
        end = "no answer" if call.ended is None else f"{call.ended.phase} {call.ended.value}"
        print(f"{call}: {end}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
