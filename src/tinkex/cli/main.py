"""The entry point of the command line: finds the command, runs it, and returns its exit code.

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
    "auth": Lazy("tinkex.cli.auth:command", "Log in to a server, and out."),
    "billing": Lazy("tinkex.cli.billing:command", "Show usage and storage of an account."),
    "cancel": Lazy("tinkex.cli.cancel:command", "Cancel requests that wait or sample."),
    "chat": Lazy("tinkex.cli.chat:command", "Talk to a model in the terminal."),
    "checkpoint": Lazy("tinkex.cli.checkpoint:command", "Make and manage saved weights."),
    "completion": Lazy("tinkex.cli.completion:command", "Print a completion script for a shell."),
    "config": Lazy("tinkex.cli.config:command", "Show the settings and where they come from."),
    "doctor": Lazy("tinkex.cli.doctor:command", "Check that everything needed is in place."),
    "keys": Lazy("tinkex.cli.keys:command", "Make, list and revoke a server's keys."),
    "models": Lazy("tinkex.cli.models:command", "Fetch base models to serve."),
    "run": Lazy("tinkex.cli.sample:command", "Sample from a model; list training runs."),
    "serve": Lazy("tinkex.cli.serve:command", "Run a server."),
    "session": Lazy("tinkex.cli.session:command", "Export the trace of a session."),
    "status": Lazy("tinkex.cli.status:command", "Show what a server does now."),
    "top": Lazy("tinkex.cli.top:command", "Watch what a server does."),
    "train": Lazy("tinkex.cli.train:command", "Fine-tune a model on a JSONL file."),
    "usage": Lazy("tinkex.cli.account_usage:command", "Show tokens, engine time, bytes used."),
    "version": Lazy("tinkex.cli.version:command", "Print the version."),
    "worker": Lazy("tinkex.cli.worker:command", "Run an engine for a server elsewhere."),
    "workers": Lazy("tinkex.cli.workers:command", "See and drain the workers of a server."),
}


EPILOG: Final = """\b
'tinkex COMMAND --help' describes a command.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 key refused, 4 not found, 5 busy,
6 server failed, 7 no answer, 130 Ctrl-C. Results are on stdout, all else on stderr. With --json the
last line of stderr is {"error": {"code", "message", "hint", "request_id"}} after a failure.
TINKEX_DEBUG=1 shows tracebacks.
"""


class CommandOutcome(NamedTuple):
    """The result of a command: its exit code, and the error unless the code is 0."""

    exit_code: int
    error: BaseException | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the command succeeded."""
        return self.exit_code == 0


def run(argv: Sequence[str] | None = None) -> CommandOutcome:
    """Runs one command line and returns its outcome; never ends the process.

    Results are on stdout, everything else on stderr. `argv` is without the program's name.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams = sys.stdout, sys.stderr
    try:
        result = root.main(arguments, prog_name="tinkex", standalone_mode=False)
    except BaseException as error:
        if isinstance(error, SystemExit) and sys.stdout is not streams[0]:
            # click puts another stream there when a pipe breaks: the reader has seen enough, as
            # in `tinkex run list | head -1`.
            sys.stdout, sys.stderr = streams
            return CommandOutcome(0)
        return _failed(error, arguments)
    return CommandOutcome(result if isinstance(result, int) else 0)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs one command line and ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="backslashreplace")  # a terminal's encoding is no reason to fail
    outcome = run(argv)
    flushed = _flush(is_reported=not outcome.is_ok)
    sys.exit(outcome.exit_code or flushed)


def _flush(*, is_reported: bool) -> int:
    """Flushes stdout; returns 0 if all data arrived or the reader closed it, 1 if some was lost.

    `is_reported` says that the command has reported its failure, so that this one adds no other.
    """
    try:
        if sys.stdout is not None:  # it is None where the shell has closed it (`>&-`)
            sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        return 1 if is_reported else _failed(error, sys.argv[1:]).exit_code
    return 0


def _silence_stdout() -> None:
    """Discards the interpreter's own flush at exit, which would only fail again."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: BaseException, arguments: list[str]) -> CommandOutcome:
    from tinkex.cli.failure import exit_code_of, report
    from tinkex.config import process_settings

    code = exit_code_of(error)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if code:
        report(error, is_json="--json" in options, is_debug=process_settings().is_debug)
    return CommandOutcome(code, error if code else None)


def _print_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from tinkex.cli.version import print_version

        print_version()
        context.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
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
      tinkex train data.jsonl --base-model smollm2-135m
      tinkex run --base-model smollm2-135m --prompt "Once upon a time"
      tinkex checkpoint list
      tinkex doctor
    """
    from tinkex.config import process_settings

    if not process_settings().has_color:
        context.color = False
