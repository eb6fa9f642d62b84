"""The command line's front door: finds the command, runs it, turns what happens into an exit code.

To add a command, write it in a file of its own and name it in `COMMANDS`. This module loads click
and little else, so that `tinkex --help` is quick; a command's module is loaded when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import click

from tinkex.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[dict[str, Lazy]] = {
    "config": Lazy("tinkex.cli.config:command", "Show the settings and where they come from."),
    "version": Lazy("tinkex.cli.version:command", "Print the version."),
}


class Outcome(NamedTuple):
    """How a command ended: its exit code, and the error unless it is 0."""

    exit_code: int
    error: BaseException | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the command did what it was asked."""
        return self.exit_code == 0


def run(argv: Sequence[str] | None = None) -> Outcome:
    """Run one command line and say how it ended; never ends the process.

    Results are on stdout, everything else on stderr. `argv` is without the program's name.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result = root.main(arguments, prog_name="tinkex", standalone_mode=False)
    except BaseException as error:
        return _failed(error, arguments)
    return Outcome(result if isinstance(result, int) else 0)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="backslashreplace")  # a narrow terminal is no reason to fail
    sys.exit(run(argv).exit_code)


def _failed(error: BaseException, arguments: list[str]) -> Outcome:
    from tinkex.cli.failure import exit_code_of, report
    from tinkex.config import process_settings

    code = exit_code_of(error)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if code:
        report(error, is_json="--json" in options, is_debug=process_settings().is_debug)
    return Outcome(code, error if code else None)


def _print_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from tinkex.cli.version import print_version

        print_version()
        context.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'tinkex COMMAND --help' tells more about a command.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def root(context: click.Context) -> None:
    """Train, sample and serve LoRA models over the Tinker protocol.

    \b
    Examples:
      tinkex version --json
      tinkex config show --origin
    """
    from tinkex.config import process_settings

    if not process_settings().has_color:
        context.color = False
