"""An API key that a command of the user prints, such as one that reads a vault.

The command runs when the key is first needed, once in a process. Nothing here shows the command,
which may hold a secret of its own, or what it printed.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import threading
from typing import Final

from tinkex.errors import ConfigError
from tinkex.setting_parsers import read_api_key
from tinkex.telemetry.redaction import Secret

__all__ = ["COMMAND_VARIABLE", "CommandKey"]

COMMAND_VARIABLE: Final = "TINKER_CREDENTIAL_CMD"

_TIMEOUT_S: Final = 60.0
_NEEDS_SHELL: Final = re.compile(r"[|&;<>()$`*?\[\]{}~#!=\n]")
_HINT: Final = (
    "Run the command yourself: it must print the API key alone, and end with exit code 0. "
    f"Or unset {COMMAND_VARIABLE} and run 'tinkex auth login'."
)
_one_at_a_time = threading.Lock()


class CommandKey(Secret):
    """The key that a command prints. Making, showing and describing it runs nothing."""

    __slots__ = ()

    def reveal(self) -> str:
        """The key; the first call in a process runs the command, the others know its answer.

        Raises:
            ConfigError: the command failed, or what it printed is no key.
        """
        with _one_at_a_time:
            return _key_of(Secret(super().reveal())).reveal()

    def __repr__(self) -> str:
        return "Secret(…)"

    def __str__(self) -> str:
        return "…"


@functools.lru_cache(maxsize=16)
def _key_of(command: Secret) -> Secret:
    """The key, kept for the life of the process; a failure is not kept."""
    printed, problem = _run(command)
    if printed is not None:
        try:
            read_api_key(printed)
            return printed
        except ValueError as error:
            problem = f"printed something that is no API key, which must be {error}"
    # Raised out here so that the error drags no frame along in which the output is a local.
    raise ConfigError(
        f"The command in {COMMAND_VARIABLE} {problem}.", hint=_HINT, code="credential-command"
    )


def _run(command: Secret) -> tuple[Secret | None, str]:
    """What the command printed, or None and what went wrong."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603  the user's own command
            _arguments(command.reveal()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"did not end within {_TIMEOUT_S:g} s"
    except (OSError, ValueError) as error:
        return None, f"could not be started: {getattr(error, 'strerror', None) or 'bad command'}"
    if done.returncode != 0:
        return None, f"ended with exit code {done.returncode}"
    printed = done.stdout.decode("utf-8", "replace").strip()
    return (Secret(printed), "") if printed else (None, "printed nothing")


def _arguments(text: str) -> list[str]:
    """The program and its arguments: those of a shell if only a shell understands the command."""
    if os.name != "posix":
        return ["cmd", "/c", text]
    try:
        words = [] if _NEEDS_SHELL.search(text) else shlex.split(text)
    except ValueError:  # a quotation that does not end: the shell fails at it
        words = []
    return words or ["/bin/sh", "-c", text]
