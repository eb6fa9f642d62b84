"""Reports errors as an exit code and as text (or JSON) on stderr.

| exit code | meaning |
|---|---|
| 1 | an error without a number of its own, mostly in the input |
| 2 | the command line or a setting is wrong |
| 3 | the API key is missing, unknown or may not do this |
| 4 | no such thing |
| 5 | rate limit, or the server is busy |
| 6 | the server failed |
| 7 | no answer from the server |
| 130 | interrupted with Ctrl-C |
"""

from __future__ import annotations

import errno
import json
import traceback
from typing import Any

import click

from tinkex import errors
from tinkex.cli.installing import install_command
from tinkex.telemetry.redaction import redact_text

_ASK_FOR_KEY = (
    "Run 'tinkex auth login', set TINKER_API_KEY, or give --api-key-file FILE; on a server of your "
    "own 'tinkex keys create' makes a key. 'tinkex doctor' checks it."
)
_NEXT_STEPS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.PermissionDeniedError, "Use a key that may do this: TINKER_API_KEY, --api-key-file."),
    (errors.BillingError, "Settle the account with the operator of the server, then try again."),
    (errors.NotFoundError, "'tinkex run list' and 'tinkex checkpoint list' show what there is."),
    (errors.RateLimitError, "Wait a little, then run the command again."),
    (errors.APITimeoutError, "Try again, or give it more time with --timeout SECONDS."),
    (
        errors.APIConnectionError,
        "Is the server running? 'tinkex serve' starts one; --base-url or TINKER_BASE_URL says "
        "where it is; 'tinkex doctor' checks.",
    ),
    (errors.APIResponseValidationError, "Check --base-url; 'tinkex doctor' shows more."),
    (errors.PromiseLostError, "Run the command again ('tinkex train --resume' if it trained)."),
    (errors.FutureTimeoutError, "Run the command again."),
    (
        errors.InternalServerError,
        "Run the command again; if it fails again, contact the server's operator.",
    ),
    (errors.TinkexError, "See 'tinkex COMMAND --help', or 'tinkex doctor'."),
)
"""Advice in terms of the command line, for errors that have no advice of their own."""

_ANY_OS_STEP = "Check the name and the permissions, then try again."
_OS_STEPS = {
    errno.ENOENT: "Check the name; there is nothing there.",
    errno.EACCES: "Check the permissions, or choose another place.",
    errno.ENOSPC: "Make room on the disk, then try again.",
    errno.EISDIR: "Name a file, not a folder.",
}

_BY_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (click.UsageError, 2),
    (errors.ConfigError, 2),
    (errors.AuthenticationError, 3),
    (errors.PermissionDeniedError, 3),
    (errors.NotFoundError, 4),
    (errors.GoneError, 4),
    (errors.RateLimitError, 5),
    (errors.InternalServerError, 6),
    (errors.APIResponseValidationError, 6),
    (errors.PromiseLostError, 6),
    (errors.ServerError, 6),
    (errors.APIConnectionError, 7),
    (errors.FutureTimeoutError, 7),
    (errors.FutureCancelledError, 130),
    (click.Abort, 130),
    (KeyboardInterrupt, 130),
)


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of this error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, errors.TinkexError) and error.code == "missing-api-key":
        return 3
    if isinstance(error, errors.ClientError):
        return {401: 3, 403: 3, 404: 4, 410: 4, 429: 5}.get(error.status, 1)
    if isinstance(error, errors.RequestFailedError):
        return 6 if error.category == "server" else 1
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), 1)


def report(error: BaseException, *, is_json: bool, is_debug: bool) -> None:
    """Prints the error on stderr; with a traceback only if `is_debug`."""
    if isinstance(error, SystemExit):
        return
    if is_debug:
        click.echo(redact_text("".join(traceback.format_exception(error))), err=True)
    if is_json:
        document = json.dumps({"error": as_json(error)}, ensure_ascii=False)
        click.echo(redact_text(document), err=True)
    else:
        click.echo(redact_text(as_text(error)), err=True)


def as_json(error: BaseException) -> dict[str, Any]:
    """Returns the error as JSON for scripts; every field is always present."""
    message, hint = _words(error)
    code = _name_of(error)
    request_id = getattr(error, "request_id", None)
    return {"code": code, "message": message, "hint": hint or None, "request_id": request_id}


def as_text(error: BaseException) -> str:
    """Returns the error as text: what happened, what to do, and its code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "\n  ".join(part for part in _words(error) if part)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()  # the help itself
    message, hint = _words(error)
    lines = [f"{_who_acts(error)}: {message}", *([f"  {hint}"] if hint else [])]
    if isinstance(error, errors.TinkexError):
        request = f" · request: {error.request_id}" if error.request_id else ""
        lines.append(f"  [code: {error.code}{request}]")
    return "\n".join(lines)


def _words(error: BaseException) -> tuple[str, str]:
    if isinstance(error, errors.TinkexError):
        return error.message, _advice(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return "A command is missing.", f"Try '{error.ctx.command_path} --help'."
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "tinkex"
        return error.format_message(), f"Try '{path} --help'."
    if isinstance(error, click.ClickException):
        return error.format_message(), ""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        # click makes an Abort of every KeyboardInterrupt; what it had to say is in its cause.
        return "Interrupted.", getattr(error.__cause__ or error, "hint", "")
    if isinstance(error, OSError):
        return _os_words(error), _OS_STEPS.get(error.errno or 0, _ANY_OS_STEP)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("tinkex"):
        return f"The package {error.name} is not installed.", f"Run: {install_command('server')}"
    return (
        f"Tinkex stumbled over itself: {type(error).__name__}: {error}",
        "This is a bug; TINKEX_DEBUG=1 shows the traceback to report.",
    )


def address_advice(error: errors.TinkexError) -> str:
    """Returns the correction of a common mistake in the server's address; "" if there is none."""
    if isinstance(error, errors.APIConnectionError) and "WRONG_VERSION_NUMBER" in error.message:
        return "It seems this port speaks plain HTTP: write http:// instead of https://."
    if isinstance(error, errors.NotFoundError) and error.code == "no-such-route":
        return "Check --base-url: base_url is the address without /api/v1."
    return ""


def _advice(error: errors.TinkexError) -> str:
    """Returns the error's own advice; the SDK's general advice in terms of the command line."""
    if error.code == "no-chat-template":
        return "Use a model that has one, or plain texts: 'run' without --chat, 'train --plain'."
    if error.code == "not-an-operator":
        return "Give the server's --data-dir, or --operator-token-file, a copy of its token."
    if error.code == "missing-api-key" or isinstance(error, errors.AuthenticationError):
        return _ASK_FOR_KEY
    if advice := address_advice(error):
        return advice
    if error.hint and error.hint != type(error).default_hint:
        return error.hint
    if isinstance(error, errors.InvalidPathError | errors.RequestFailedError) and error.hint:
        return error.hint
    return next(step for kind, step in _NEXT_STEPS if isinstance(error, kind))


def _os_words(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}."


def _who_acts(error: BaseException) -> str:
    blame = getattr(error, "blame", "")
    return {"server": "Server error", "network": "Network error"}.get(blame, "Error")


def _name_of(error: BaseException) -> str:
    if isinstance(error, errors.TinkexError):
        return error.code
    if isinstance(error, click.UsageError):
        return "usage"
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, ModuleNotFoundError):
        return "missing-package"
    return "error" if isinstance(error, click.ClickException | OSError) else "internal"
