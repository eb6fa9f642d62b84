"""One real server with a tiny model, under the name that the documentation uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.admin import create_key
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

MODEL = "smollm2-135m"
Run = Callable[..., str]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a reader's shell has after pasting what `tinkex serve` prints, and a second key."""
    folder = tmp_path_factory.mktemp("docs")
    make_tiny_model(folder / "model")
    models = (ServedModel(name=MODEL, source=str(folder / "model")),)
    # One thread: for so small a model more of them only get in each other's way.
    config = ServerConfig(data_dir=folder / "data", port=0, models=models, num_threads=1)
    with EmbeddedServer(config) as server:
        other = create_key(folder / "data", None, name="other", is_new_owner=True).key
        yield {
            **{name: value for name, value in os.environ.items() if "TINKE" not in name},
            "TINKER_API_KEY": server.api_key,
            "TINKER_BASE_URL": server.base_url,
            "OTHER_API_KEY": other,
            "OMP_NUM_THREADS": "1",
        }


@pytest.fixture
def run_python(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs Python with these arguments as a reader would; gives what it printed."""

    def run(*arguments: str, warnings: str = "error") -> str:
        done = subprocess.run(
            [sys.executable, "-W", warnings, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), "an example that prints nothing shows nothing"
        return done.stdout

    return run
