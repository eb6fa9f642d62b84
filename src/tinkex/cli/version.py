"""`tinkex version`: the installed version, from the package's metadata.

No git is run and no repository is needed: the commit is what the installer or the build wrote down,
and in a clone or an editable install what its own repository has checked out. The package's own
metadata are read as the plain files they are: `importlib.metadata` would take most of the time this
command needs, and serves for the dependencies only.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tinkex.cli.options import json_option
from tinkex.cli.output import print_json

if TYPE_CHECKING:
    from importlib.metadata import Distribution

UNKNOWN = "unknown"


@click.command(short_help="Print the version.")
@click.option("--deps", "has_deps", is_flag=True, help="List what Tinkex depends on, too.")
@json_option
def command(has_deps: bool, is_json: bool) -> None:
    """Print the version.

    \b
    Examples:
      tinkex version
      tinkex version --deps --json

    \b
    JSON: {"version", "commit": SHA or null}; with --deps [{"name", "version" or null}]
    """
    if has_deps:
        _print_dependencies(is_json)
    elif is_json:
        print_json({"version": version(), "commit": commit()})
    else:
        print_version()


def print_version() -> None:
    """Prints the version on one line, with the commit if it is known."""
    known = commit()
    click.echo(f"tinkex {version()}" + (f" ({known[:12]})" if known else ""))


def version() -> str:
    """Returns the version of the installed package."""
    for line in _own_metadata("METADATA").splitlines():
        if line.startswith("Version:"):
            return line.removeprefix("Version:").strip()
    installed = _installed("tinkex")
    return installed.version if installed else UNKNOWN


def commit() -> str | None:
    """Returns the commit the package was built from, or is run from; None if it is unknown."""
    if (installed := _commit_of_installer()) is not None:
        return installed
    from pathlib import Path

    from tinkex.commit import commit_of_package

    return commit_of_package(Path(__file__).resolve().parent.parent)


def _commit_of_installer() -> str | None:
    """Returns the commit that the installer recorded if it installed straight from a repository."""
    text = _own_metadata("direct_url.json")
    if "vcs_info" not in text:
        return None
    import json

    try:
        found = json.loads(text)["vcs_info"]["commit_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def _own_metadata(name: str) -> str:
    """Returns a file of the first `tinkex-<version>.dist-info` on the path; empty if
    there is none."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208  pathlib costs more than the listing
            found = [each for each in names if _is_own(each)]
            if found:
                with open(os.path.join(folder, found[0], name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                    return file.read()
        except OSError:
            continue
    return ""


def _is_own(name: str) -> bool:
    return name.startswith("tinkex-") and name.endswith(".dist-info")


def dependencies() -> list[tuple[str, str | None]]:
    """Returns Tinkex's dependencies with installed versions, then the installed optional ones."""
    import re

    installed = _installed("tinkex")
    needed: dict[str, str | None] = {}
    optional: dict[str, str | None] = {}
    for requirement in (installed.requires if installed else None) or []:
        match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
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
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
