"""Commands run inside the test, with an environment and a home of their own."""

import json
import os
from typing import Any, NamedTuple

import pytest

from tinkex.cli.main import run as run_cli


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    error: BaseException | None

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command line and gives its exit code and what it printed."""
    for name in list(os.environ):
        if name.startswith(("TINKER_", "TINKEX_")) or name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    def run_it(*arguments: str) -> Ran:
        capsys.readouterr()
        outcome = run_cli(arguments)
        out, err = capsys.readouterr()
        return Ran(outcome.exit_code, out, err, outcome.error)

    return run_it
