"""Memory of this machine: how much is free, and how much this process has taken. Without torch."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_bytes", "own_bytes"]


def available_bytes() -> int:
    """Memory the system, or the container we are in, can still give; 4 GiB if unknown."""
    found = []
    path = Path("/proc/meminfo")
    if path.is_file():
        lines = [line.split() for line in path.read_text().splitlines()]
        found += [int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"]
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").is_file():
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((group / "memory.current").read_text()))
    return min(found, default=4 * 2**30)


def own_bytes() -> int:
    """Memory, in bytes, that only the end of this process frees; 0 if unknown. Mapped files are not
    counted: the system drops their pages under memory pressure."""
    path = Path("/proc/self/status")
    if not path.is_file():
        return 0
    lines = [line.split() for line in path.read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0] == "RssAnon:")
