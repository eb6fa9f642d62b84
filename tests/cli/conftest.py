"""The installed `tinkex` as a process of its own: its exit codes, pipes, signals and terminal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import KEY, PATIENCE_S, Shell
from tests.support.loopback import LoopbackServer


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    """A loopback server of this test's own."""
    with LoopbackServer() as running:
        yield running


@pytest.fixture
def shell(server: LoopbackServer, tmp_path: Path) -> Shell:
    """Commands against the loopback server."""
    return Shell(
        tmp_path,
        {
            "TINKER_BASE_URL": server.url,
            "TINKER_API_KEY": KEY,
            "TINKEX_RETRY_BUDGET_S": "0.01",
            "TINKEX_RETRY_BASE_S": "0.001",
        },
    )


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model."""
    from tinkex.engine.convert.tiny_model import make_tiny_model

    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve short conversations."""
    path = tmp_path / "data.jsonl"
    roles = ("user", "assistant")
    lines = [
        {"messages": [{"role": role, "content": f"{role} {number}"} for role in roles]}
        for number in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[dict[str, str]]:
    """A real `tinkex serve` with the tiny model; the variables that lead to it."""
    folder = tmp_path_factory.mktemp("live")
    shell = Shell(folder)
    arguments = ("--port", "0", "--data-dir", "data", "--model", f"tiny={model}")
    with (folder / "log").open("w") as log:
        process = shell.start(
            "serve", *arguments, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
        assert process.stdout is not None
        output = ""
        while not (match := re.search(r"export TINKER_API_KEY=(\S+)", output)):
            line = process.stdout.readline()
            assert line, f"the server ended: {(folder / 'log').read_text()}"
            output += line
        url = re.search(r"Listening on (\S+)", output)
        assert url is not None
        try:
            yield {"TINKER_BASE_URL": url[1], "TINKER_API_KEY": match[1]}
        finally:
            process.terminate()
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 0
