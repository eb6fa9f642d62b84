"""Memory that this server and the engine processes it started hold."""

from __future__ import annotations

from pathlib import Path

__all__ = ["engine_bytes", "resident_bytes"]


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in RAM; 0 if it is unknown."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    lines = [line.split() for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0][1]) * 1024 if lines else 0


def engine_bytes() -> int:
    """Memory of the processes that this one has started, which are its engines."""
    return sum(resident_bytes(pid) for pid in _children())


def _children() -> list[str]:
    """The ids of processes that any thread of this one has started and that still run."""
    found: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found += path.read_text(encoding="ascii").split()
        except OSError:  # the thread has just ended
            continue
    return found
