"""Where in the user's program an operation was submitted, as a note on its error."""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from pathlib import Path

from tinkex.errors import TinkexError

__all__ = ["submit_site", "with_site"]

_PACKAGE_FOLDER = str(Path(__file__).parent.parent) + os.sep
_ASYNCIO_FOLDER = str(Path(asyncio.__file__).parent) + os.sep
_SITE_NOTE = "submitted at "


def submit_site() -> str | None:
    """`file:line` of the first caller outside this package, for error notes.

    None for work that the package's own work has begun on the loop.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_code.co_filename.startswith(_ASYNCIO_FOLDER):
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def with_site(error: BaseException, site: str | None) -> BaseException:
    """The error with a note of the line that submitted it: one note, even with several waiters."""
    if site is None:
        return error
    if isinstance(error, TinkexError) and any(map(_is_site, getattr(error, "__notes__", ()))):
        cause, trace = error.__cause__, error.__traceback__
        error = copy.copy(error).with_traceback(trace)
        error.__cause__ = cause
        error.__notes__ = [note for note in error.__notes__ if not _is_site(note)]
    error.add_note(f"{_SITE_NOTE}{site}")
    return error


def _is_site(note: str) -> bool:
    return note.startswith(_SITE_NOTE)
