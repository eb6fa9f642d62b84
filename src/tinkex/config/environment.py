"""The process environment, and the folders it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["config_folder", "credentials_file", "home_folder", "variables"]


def variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """The given variables, or those of the process."""
    return os.environ if environ is None else environ


def home_folder(environ: Mapping[str, str], *, is_real: bool) -> Path | None:
    """The user's home; None if there is none, or none in variables that stand in for the real."""
    if named := environ.get("HOME") or environ.get("USERPROFILE"):
        return Path(named)
    if not is_real:
        return None
    try:
        return Path.home()
    except RuntimeError:
        return None


def config_folder(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """The folder of the user's settings; None without a home."""
    if config_home := environ.get("XDG_CONFIG_HOME"):
        return Path(config_home) / "tinkex"
    return home / ".config" / "tinkex" if home else None


def credentials_file(
    named: str | None, environ: Mapping[str, str], home: Path | None
) -> Path | None:
    """The file with the keys of `tinkex auth login`; None without a home."""
    if named is not None:
        return Path(named).expanduser()
    folder = config_folder(environ, home)
    return folder / "credentials.json" if folder else None
