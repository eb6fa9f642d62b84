"""Memory of a process and its children, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int) -> float:
    """Returns the resident memory of the process and its children, in MiB."""
    return sum(_status(each, "VmRSS") for each in _tree(pid)) / 1024


def peak_mib(pid: int) -> float:
    """Returns the sum of each process's peak, in MiB: no less than the true peak."""
    return sum(_status(each, "VmHWM") for each in _tree(pid)) / 1024


def _tree(pid: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in _tree(child))]


def _status(pid: int, field: str) -> int:
    """Returns a value of the process's status, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return 0
