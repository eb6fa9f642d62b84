"""`tinkex top`: the status of a server, redrawn until q or Ctrl-C."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from tinkex.cli.options import FiniteRange
from tinkex.cli.output import printable
from tinkex.cli.status import StatusSource, source_options, status_source

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # other screen, no cursor
_KEYS = "q ends"


@click.command(short_help="Watch what a server does.")
@click.option(
    "--every",
    "every_s",
    type=FiniteRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@source_options
def command(every_s: float, **source: Any) -> None:
    """Watch what a server does: the screen of 'tinkex status', redrawn until q or Ctrl-C.

    A request that fails is repeated; the screen says why.

    \b
    Examples:
      tinkex top
      tinkex top --operator --data-dir ./data --base-url http://127.0.0.1:8000
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("This needs a terminal; 'tinkex status --json' does not.")
    found = status_source(**source)
    lines = found.screen(found.fetch())  # errors are reported before anything is drawn
    with _screen() as is_ended:
        while True:
            _draw([*_header(), *lines])
            if is_ended(every_s):
                return
            lines = _look_again(found, lines)


def _look_again(source: StatusSource, before: list[str]) -> list[str]:
    """Returns the screen, or the previous one with the error on its first line."""
    from tinkex.errors import TinkexError

    try:
        return source.screen(source.fetch())
    except TinkexError as error:
        reason = str(error).splitlines()[0]
        return [f"No answer: {reason}"[: _columns()], *before[1:]]


def _header() -> list[str]:
    clock = time.strftime("%H:%M:%S")
    return [f"{clock}{_KEYS:>{max(0, _columns() - len(clock))}}", ""]


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _draw(lines: list[str]) -> None:
    """Draws as many lines as fit, without clearing the screen first."""
    shown = [printable(line) for line in lines[: shutil.get_terminal_size().lines]]
    rest = f"{_REST_OF_LINE}\r\n"
    sys.stdout.write(f"{_HOME}{rest.join(shown)}{_REST_OF_LINE}{_REST_OF_SCREEN}")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[Callable[[float], bool]]:
    """Switches to the alternate screen; yields a wait that returns whether q
    was pressed meanwhile."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    sys.stdout.write(_OPEN)
    try:
        yield lambda wait_s: _is_ended(stdin, wait_s)
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _is_ended(stdin: int, wait_s: float) -> bool:
    """Waits; returns whether q was pressed or the terminal was closed. Other keys
    redraw at once."""
    ready, _, _ = select.select([stdin], [], [], wait_s)
    if not ready:
        return False
    pressed = os.read(stdin, 64)
    return not pressed or b"q" in pressed.lower()
