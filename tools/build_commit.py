"""Writes down, in every wheel and source package, the commit it is built from.

A hook of hatchling's build. An editable install gets no such file: it finds the commit in the
repository it runs from, also after the next commit.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds the file to what is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build; `version` says of what kind."""
        package = Path(self.root) / "src" / "tinkex"
        found = runpy.run_path(str(package / "commit.py"))
        name = found["FILE_NAME"]
        commit = found["commit_of_repository"](Path(self.root))
        if version == "editable" or commit is None or (package / name).exists():
            return
        self._folder = tempfile.TemporaryDirectory(prefix="tinkex-build-")
        written = Path(self._folder.name) / name
        written.write_text(f"{commit}\n")
        target = f"src/tinkex/{name}" if self.target_name == "sdist" else f"tinkex/{name}"
        build_data["force_include"][str(written)] = target

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called after a build."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
