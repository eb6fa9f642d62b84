"""Disk space: an SQLite file shrinks after deletions, and its write-ahead log stays short.

Free pages are used again before the file grows; when a quarter of it is free, pages go back to the
disk, a few megabytes at a time. What a freed page held is not overwritten, else a delete would
write as much as it frees, on a disk that may be full. The write-ahead log is folded into the file
every thousand pages; where readers have kept it from starting anew, it is cut. PostgreSQL does all
this by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["fold_log", "prepare", "shrink"]

_PAGES_AT_ONCE = 2048
_PAGES_WORTH_IT = 1024
_MAX_LOG_BYTES = 64 * 1024 * 1024
_PATIENCE_MS = 1000


def prepare(cursor: Any) -> None:
    """Sets up a new connection. A file made before this module existed reuses pages
    and never shrinks."""
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:  # else it would be a write
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute(f"PRAGMA journal_size_limit={_MAX_LOG_BYTES}")
    cursor.execute("PRAGMA secure_delete=FAST").fetchall()


def fold_log(cursor: Any) -> None:
    """Moves the write-ahead log into the file and cuts it; a reader in the way leaves it as is."""
    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def shrink(cursor: Any, path: Path | None, busy_timeout_ms: int) -> bool:
    """Frees pages; returns whether there are more. Runs on the writer's connection,
    in no transaction."""
    if path is not None and _log_bytes(path) > _MAX_LOG_BYTES:
        # Waits for readers, but not for long: every writer waits meanwhile.
        cursor.execute(f"PRAGMA busy_timeout={_PATIENCE_MS}")
        fold_log(cursor)
        cursor.execute(f"PRAGMA busy_timeout={busy_timeout_ms}")
    free, pages, mode = (
        cursor.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("freelist_count", "page_count", "auto_vacuum")
    )
    if mode == 0 or free < max(_PAGES_WORTH_IT, pages // 4):
        return False
    # As a script, or the driver would fetch one row and the pragma free one page.
    cursor.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
    return True


def _log_bytes(path: Path) -> int:
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size if log.exists() else 0
