"""`tinkex checkpoint publish`, `unpublish`, `set-ttl`, and how to do one thing to many."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.failure import exit_code_of
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import print_json, say
from tinkex.errors import TinkexError

if TYPE_CHECKING:
    from tinkex.client.futures import Future
    from tinkex.client.rest import RestClient

MAX_AT_ONCE = 16
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def duration(text: str) -> int:
    """Returns the seconds of a duration: a number, or one with a unit as in 90m, 12h, 30d, 2w."""
    match = re.fullmatch(r"(\d+)([smhdw]?)", text.strip().lower())
    if not match or not int(match[1]):
        raise click.BadParameter(f"{text!r} is no duration such as 3600, 12h or 30d.")
    return int(match[1]) * _UNITS[match[2]]


@click.command(short_help="Let all tenants use checkpoints.")
@click.argument("paths", nargs=-1, required=True)
@json_option
@connection_options
@click.pass_context
def publish(
    context: click.Context, /, paths: tuple[str, ...], is_json: bool, **connection: Any
) -> None:
    """Let all tenants who know their paths use checkpoints.

    \b
    JSON: {"changed": [PATH], "failed": [{"tinker_path", "error"}]}
    """
    rest = _rest(connection)
    _change(context, paths, rest.publish_checkpoint_from_tinker_path, "Published", is_json)


@click.command(short_help="Make checkpoints private.")
@click.argument("paths", nargs=-1, required=True)
@json_option
@connection_options
@click.pass_context
def unpublish(
    context: click.Context, /, paths: tuple[str, ...], is_json: bool, **connection: Any
) -> None:
    """Make published checkpoints private again.

    \b
    JSON: {"changed": [PATH], "failed": [{"tinker_path", "error"}]}
    """
    rest = _rest(connection)
    _change(context, paths, rest.unpublish_checkpoint_from_tinker_path, "Now private", is_json)


@click.command(short_help="Set when checkpoints expire.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--ttl", type=duration, metavar="TIME", help="From now on: 3600, 90m, 12h, 30d.")
@click.option("--remove", "is_removed", is_flag=True, help="Never expire.")
@json_option
@connection_options
@click.pass_context
def set_ttl(
    context: click.Context,
    /,
    paths: tuple[str, ...],
    ttl: int | None,
    is_removed: bool,
    is_json: bool,
    **connection: Any,
) -> None:
    """Set when checkpoints expire, counted from now.

    \b
    Examples:
      tinkex checkpoint set-ttl tinker://RUN/weights/step-100 --ttl 30d
      tinkex checkpoint set-ttl tinker://RUN/weights/final --remove

    \b
    JSON: {"changed": [PATH], "failed": [{"tinker_path", "error"}]}
    """
    if (ttl is None) != is_removed:
        raise click.UsageError("Give --ttl TIME or --remove: exactly one of them.")
    rest = _rest(connection)

    def change(path: str) -> Future[None]:
        return rest.set_checkpoint_ttl_from_tinker_path(path, ttl)

    done = "No longer expires" if is_removed else f"Expires in {ttl} s"
    _change(context, paths, change, done, is_json)


def _rest(connection: dict[str, Any]) -> RestClient:
    from tinkex.client.rest import RestClient

    return RestClient(config=quick_config(**connection))


def _change(
    context: click.Context,
    paths: Sequence[str],
    action: Callable[[str], Future[None]],
    done: str,
    is_json: bool,
) -> None:
    changed, failed = do_each(paths, action)
    if is_json:
        print_json({"changed": changed, "failed": as_failures(failed)})
    else:
        for path in changed:
            say(f"{done}: {path}")
    end_with(context, failed, is_json=is_json)


def do_each(
    paths: Sequence[str], action: Callable[[str], Future[None]]
) -> tuple[list[str], dict[str, TinkexError]]:
    """Applies the action to every path, several at once; returns the successful paths, and the
    errors of the others.

    Raises:
        InvalidPathError: one of them is not a path; no action was applied.
    """
    from tinkex.client.futures import stream
    from tinkex.wire.paths import TinkerPath

    unique = [str(TinkerPath.parse(path)) for path in dict.fromkeys(paths)]
    done: list[str] = []
    failed: dict[str, TinkexError] = {}
    for path, outcome in zip(
        unique, stream(action, unique, max_in_flight=MAX_AT_ONCE), strict=True
    ):
        if outcome.error is None:
            done.append(path)
        else:
            failed[path] = outcome.error
    return done, failed


def as_failures(failed: dict[str, TinkexError]) -> list[dict[str, str]]:
    """Returns failures in their JSON form."""
    return [{"tinker_path": path, "error": error.message} for path, error in failed.items()]


def end_with(context: click.Context, failed: dict[str, TinkexError], *, is_json: bool) -> None:
    """Ends the command with 0, or with the exit code that all failures share (1 if they differ).

    A single failure is raised, so that it is printed in full.
    """
    if not failed:
        return
    if len(failed) == 1 and not is_json:
        raise next(iter(failed.values()))
    for path, error in failed.items():
        say(f"Failed: {path}: {error.message}")
    codes = {exit_code_of(error) for error in failed.values()}
    context.exit(codes.pop() if len(codes) == 1 else 1)
