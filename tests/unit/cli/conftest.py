"""Commands run inside the test, with an environment and a home of their own."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.loopback import LoopbackServer
from tinkex.cli.main import run as run_cli
from tinkex.client import runtime

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"


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


@pytest.fixture
def server():
    """A loopback server of this test's own."""
    with LoopbackServer() as running:
        yield running
        _stop_default_runtime()


def _stop_default_runtime() -> None:
    """Commands use the process's runtime; its connections must end before the server does."""
    if (default := runtime._process.default) is not None:
        runtime._process.default = None
        default.stop()


@pytest.fixture
def cli(run, server, monkeypatch):
    """Like `run`, against the loopback server."""
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKEX_RETRY_BASE_S", "0.001")
    monkeypatch.setenv("TINKEX_RETRY_BUDGET_S", "0.01")
    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """A model's name that is also the folder of its tokenizer."""
    from tinkex.engine.convert.tiny_model import make_tiny_model

    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def checkpoints(cli, model) -> list[str]:
    """Three checkpoints of three runs, oldest first."""
    return [
        cli("checkpoint", "--base-model", model, "--name", f"c{number}").out.strip()
        for number in range(3)
    ]


@pytest.fixture
def data(tmp_path) -> Path:
    """Ten short conversations."""
    path = tmp_path / "data.jsonl"
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"{number}?"},
                {"role": "assistant", "content": f"It is {number}."},
            ]
        }
        for number in range(10)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
