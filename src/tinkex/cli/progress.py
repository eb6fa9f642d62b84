"""One line on the terminal that is rewritten while work runs; nothing without a terminal.

Uses no escape sequences, so that every terminal can show it.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self, TextIO

import click

from tinkex.cli.output import printable

REFRESH_S = 0.1
BAR_WIDTH = 24


class StatusLine:
    """The status line, a context manager; messages printed through it stay above the line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_live = self._stream.isatty()
        self._shown = ""
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def show(self, text: str, *, is_urgent: bool = False) -> None:
        """Shows a text on the line; too frequent ones are skipped unless urgent."""
        now = time.monotonic()
        if not self.is_live or (now - self._last < REFRESH_S and not is_urgent):
            return
        self._last = now
        self._write(printable(text)[: self._width() - 1])

    def say(self, text: str) -> None:
        """Prints a message that stays."""
        self.clear()
        click.echo(printable(text), err=True)

    def clear(self) -> None:
        """Clears the line."""
        if self._shown:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def bar(self, done: float, total: float) -> str:
        """Returns a bar that is full when `done` reaches `total`."""
        full, empty = ("━", "─") if _is_unicode(self._stream) else ("#", "-")
        filled = round(BAR_WIDTH * min(1.0, done / total)) if total > 0 else 0
        return full * filled + empty * (BAR_WIDTH - filled)

    def _write(self, text: str) -> None:
        rest = " " * max(0, len(self._shown) - len(text))
        self._stream.write(f"\r{text}{rest}")
        self._stream.flush()
        self._shown = text

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


def duration_text(seconds: float) -> str:
    """Returns a duration in seconds as text.

    >>> duration_text(3723.4)
    '1:02:03'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _is_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")
