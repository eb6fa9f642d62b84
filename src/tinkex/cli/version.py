"""`tinkex version`: what is installed, from the installed package's metadata alone.

No git is run and no repository is needed: the commit is known only if the installer wrote it down.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import click

from tinkex.cli.options import json_option
from tinkex.cli.output import print_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command(short_help="Print the version.")
@click.option("--deps", "has_deps", is_flag=True, help="List what Tinkex depends on, too.")
@json_option
def command(has_deps: bool, is_json: bool) -> None:
    """Print the version.

    \b
    Examples:
      tinkex version
      tinkex version --deps --json
    """
    if has_deps:
        _print_dependencies(is_json)
    elif is_json:
        print_json({"version": version(), "commit": commit()})
    else:
        print_version()


def print_version() -> None:
    """The version on one line, with the commit if it is known."""
    known = commit()
    click.echo(f"tinkex {version()}" + (f" ({known[:12]})" if known else ""))


def version() -> str:
    """The version of the installed package."""
    installed = _installed("tinkex")
    return installed.version if installed else "unknown"


def commit() -> str | None:
    """The commit the package was built from, if it was installed straight from a repository."""
    installed = _installed("tinkex")
    text = installed.read_text("direct_url.json") if installed else None
    try:
        found = json.loads(text or "{}")["vcs_info"]["commit_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def dependencies() -> list[tuple[str, str | None]]:
    """What Tinkex needs, with installed versions, then those optional ones that are installed."""
    installed = _installed("tinkex")
    needed: dict[str, str | None] = {}
    optional: dict[str, str | None] = {}
    for requirement in (installed.requires if installed else None) or []:
        match = _NAME.match(requirement)
        name = match.group().lower() if match else ""
        if not name or name == "tinkex":
            continue
        found = _installed(name)
        if "extra ==" not in requirement:
            needed[name] = found.version if found else None
        elif found and not re.search(r"extra == ['\"]dev['\"]", requirement):
            optional[name] = found.version
    return [*sorted(needed.items()), *sorted(optional.items() - needed.items())]


def _print_dependencies(is_json: bool) -> None:
    rows = [("tinkex", version()), *dependencies()]
    if is_json:
        print_json([{"name": name, "version": found} for name, found in rows])
        return
    for name, found in rows:
        click.echo(f"{name} - {found or 'not installed'}")


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
